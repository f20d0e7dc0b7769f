"""The general engine: local steps of any PyTorch module, with autograd.

The module's parameters are views of one flat vector, so a step is a few vector operations however many parameters
there are. Buffers (BatchNorm's statistics) are not part of the algorithms' vectors: they start from the server's at
every client, follow the gradients at the local model, and are averaged apart.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.direction import Vector
from kedge.errors import UsageError
from kedge.local_steps import local_steps
from kedge.problem import Federation
from kedge.simulator.engines.base import Done, Engine, Loss, Setup, Work


def views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Cut a flat vector into tensors of these shapes, without a copy."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else like.new_zeros(0)


class FlatModule:
    """A copy of a module whose trainable parameters and statistics are views of two flat vectors."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.module = copy.deepcopy(model).to(device)
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not trained:
            raise UsageError("the model has no parameter to train")
        _check_dtypes(trained)
        self.parameters = list(trained.values())
        self._frozen = frozen(self.module)
        self._shapes = [p.shape for p in self.parameters]
        self.initial = _flat(self.parameters, self.parameters[0])
        # Tables of another dtype than the statistics, and counters, belong to nobody's average.
        dtype = _statistics_dtype(self.module, self.initial.dtype)
        floating = [b for b in self.module.buffers() if b.dtype == dtype]
        self.buffers = _flat(floating, self.initial)
        for buffer, view in zip(floating, views(self.buffers, [b.shape for b in floating]), strict=True):
            buffer.data = view
        self._others = {name: (b, b.clone()) for name, b in self.module.named_buffers() if b.dtype != dtype}
        self._bound = self.initial.new_empty(0)
        self.bind(self.initial.clone())

    def enter(self, buffers: Tensor) -> None:
        """Start a client's training from the server's buffers; what is not averaged starts anew at every client."""
        self.module.train()
        for module in self._frozen:
            module.training = False
        self.buffers.copy_(buffers)
        for buffer, initial in self._others.values():
            buffer.copy_(initial)

    def check_tables(self) -> None:
        """Say it if training has changed a buffer that is not averaged because of its dtype."""
        for name, (buffer, initial) in self._others.items():
            if buffer.is_floating_point() and not torch.equal(buffer, initial):
                raise UsageError(
                    f"the buffer {name} of the model is of {buffer.dtype} and changes in training, "
                    f"but the statistics that clients share are of {self.buffers.dtype}; give them one dtype"
                )

    def bind(self, point: Vector) -> None:
        """Let the parameters be views of ``point``, (d,) or (1, d)."""
        point = point.view(-1)
        if point.data_ptr() == self._bound.data_ptr():
            return
        self._bound = point
        for parameter, view in zip(self.parameters, views(point, self._shapes), strict=True):
            parameter.data = view

    def exported(self, x: Vector, buffers: Tensor) -> nn.Module:
        """Return an independent module with these parameters and buffers, ready to predict."""
        self.bind(x)
        self.buffers.copy_(buffers)
        result = copy.deepcopy(self.module)
        for buffer in result.buffers():
            buffer.data = buffer.data.clone()  # a deep copy leaves them views of one storage
        return result.eval()


def frozen(model: nn.Module) -> list[nn.Module]:
    """Return the parts that ``eval()`` has frozen. A model wholly in evaluation mode has none: it is trained."""
    parts = [module for module in model.modules() if not module.training]
    return parts if any(module.training for module in model.modules()) else []


def _check_dtypes(parameters: Mapping[str, Tensor]) -> None:
    first = next(iter(parameters))
    for name, value in parameters.items():
        if not value.is_floating_point():
            raise UsageError(f"the parameter {name} of the model is of {value.dtype}, but must be real")
        if value.dtype != parameters[first].dtype:
            raise UsageError(
                f"the parameter {name} of the model is of {value.dtype}, but {first} is of {parameters[first].dtype}; "
                "give all of them one dtype"
            )


def _statistics_dtype(model: nn.Module, usual: torch.dtype) -> torch.dtype:
    """Return the dtype of BatchNorm's statistics, which may not be that of the parameters."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase))
    return next((norm.running_mean.dtype for norm in norms if norm.running_mean is not None), usual)


def try_model(flat: FlatModule, federation: Federation, loss: Loss, batch_size: int | None) -> bool:
    """Run the model on the smallest client and check the labels; return whether it draws random numbers (dropout)."""
    smallest = int(federation.sizes.argmin())
    chosen = federation.indices[smallest][:batch_size]
    features, labels = federation.features[chosen], federation.labels[chosen]
    buffers, before = flat.buffers.clone(), _random_state(features.device)
    flat.enter(buffers)
    try:
        output = flat.module(features)
        flat.check_tables()
        if is_cross_entropy(loss):
            _check_labels(output, federation)
        value = loss(output, labels)
    except UsageError:
        raise
    except Exception as error:
        shape = tuple(features.shape)
        if "more than 1 value per channel" in str(error):
            who = f"batch_size is {batch_size}" if batch_size else f"client {smallest} has 1 sample"
            raise UsageError(f"{who}, but BatchNorm needs more than one value per channel to train") from error
        raise UsageError(f"the model or the loss fails on a minibatch of shape {shape}: {error}") from error
    finally:
        drew = any(not torch.equal(a, b) for a, b in zip(before, _random_state(features.device), strict=True))
        _set_random_state(before, features.device)
        flat.enter(buffers)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise UsageError("the loss must be one number for a minibatch, but it is not a scalar tensor")
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in flat.module.modules())
    return drew or drops


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def is_cross_entropy(loss: Any) -> bool:
    """Whether ``loss`` is plain mean cross-entropy."""
    return loss is cross_entropy or is_plain(loss, nn.CrossEntropyLoss)


def is_plain(loss: Any, kind: type[nn.Module]) -> bool:
    """Whether ``loss`` is a module of this kind without options."""
    options = ("reduction", "label_smoothing", "ignore_index", "weight")
    return type(loss) is kind and all(getattr(loss, name, None) == getattr(kind(), name, None) for name in options)


def _check_labels(output: Any, federation: Federation) -> None:
    """Cross-entropy reads labels as classes; say so before an index error deep inside does."""
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(f"the model's output is {shape}, but cross-entropy needs (samples, classes)")
    tests = [] if federation.test is None else [federation.test[1]]
    for labels in [federation.labels, *tests]:
        if labels.is_floating_point():
            raise UsageError("the labels are not integers, as cross-entropy needs; pass another loss")
        if labels.ndim != 1:
            raise UsageError(f"the labels have the shape {tuple(labels.shape)}, but cross-entropy needs (samples,)")
        if labels.numel() and int(labels.max()) >= output.shape[1]:
            raise UsageError(f"label {int(labels.max())} is out of range: the model has {output.shape[1]} outputs")


def convolves(model: nn.Module, federation: Federation) -> bool:
    """Whether the model has convolutions of images: they are faster when the channels of a pixel lie together."""
    return federation.features.ndim == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules())


class Samples:
    """Samples as rows, whatever the order in which their numbers lie in memory: a minibatch is one copy."""

    def __init__(self, features: Tensor) -> None:
        self._last = features.ndim == 4 and features.is_contiguous(memory_format=torch.channels_last)
        ordered = features.permute(0, 2, 3, 1) if self._last else features
        self._shape = ordered.shape[1:]
        self._rows = ordered.reshape(len(features), -1)

    def __getitem__(self, chosen: Tensor) -> Tensor:
        batch = self._rows.index_select(0, chosen).view(len(chosen), *self._shape)
        return batch.permute(0, 3, 1, 2) if self._last else batch


class Gradients(Protocol):
    """Takes the gradients of a module's loss by all its trained parameters."""

    def __call__(self, features: Tensor, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return them at the parameters as they are; ``seed`` is for the module's random numbers."""
        ...


class ClientSteps:
    """Runs the local steps of one client after the other on a flat module, whose ``gradients`` it is given."""

    def __init__(self, flat: FlatModule, gradients: Gradients, federation: Federation, weight_decay: float) -> None:
        self._flat = flat
        self._gradients = gradients
        self._federation = federation
        self._weight_decay = weight_decay
        self._samples = Samples(federation.features)

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        flat, calls = self._flat, 0
        flat.enter(work.buffers)
        (client,) = work.clients
        own = self._federation.indices[client]
        rows = None if work.batches is None else own[torch.from_numpy(work.batches[0]).to(own.device)]
        features, labels, loaded = self._federation.features, self._federation.labels, -1
        grad = torch.empty_like(work.start)

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls, features, labels, loaded
            calls += 1
            wanted = 0 if rows is None else k
            if wanted != loaded:
                chosen = own if rows is None else rows[k]
                features = self._samples[chosen]
                labels, loaded = self._federation.labels.index_select(0, chosen), wanted
            flat.bind(point)
            kept = flat.buffers.clone() if second and flat.buffers.numel() else None
            parts = self._gradients(features, labels, None if work.seeds is None else int(work.seeds[0, k]))
            torch.cat([part.reshape(-1) for part in parts], out=grad[0])
            if self._weight_decay:
                grad.add_(point, alpha=self._weight_decay)
            if kept is not None:
                flat.buffers.copy_(kept)
            return grad

        local = local_steps(work.rule, work.start, work.eta, work.steps, gradient, work.needs)
        return Done(local, flat.buffers.clone(), calls)


class Autograd:
    """Takes the gradients of any module."""

    def __init__(self, flat: FlatModule, loss: Loss) -> None:
        self._flat = flat
        self._loss = loss

    def __call__(self, features: Tensor, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return the gradients at the parameters as they are bound."""
        if seed is not None:
            torch.manual_seed(seed)
        with torch.enable_grad():
            loss = self._loss(self._flat.module(features), labels)
            parts = torch.autograd.grad(loss, self._flat.parameters, allow_unused=True, materialize_grads=True)
        return [part if part.layout == torch.strided else part.to_dense() for part in parts]


class ModuleEngine:
    """Runs any module with autograd."""

    name = "module"

    def __init__(self, setup: Setup) -> None:
        flat = FlatModule(setup.model, setup.device)
        self._steps = ClientSteps(flat, Autograd(flat, setup.loss), setup.federation, setup.weight_decay)

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a group may have."""
        return 1

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        return self._steps.run(work)


def builder(setup: Setup) -> Callable[[], Engine]:
    """Return what makes an engine: it runs whatever torch can differentiate."""
    return partial(ModuleEngine, setup)
