"""A module whose parameters are views of one flat vector.

A step is then a few vector operations, however many parameters there are. Buffers (BatchNorm's statistics) are not part
of the algorithms' vectors: every client starts from the server's, gradients at the local model update them, and they
are averaged separately.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from kedge.direction import Vector
from kedge.errors import UsageError


def views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Cut a flat vector into tensors of these shapes, without a copy."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else like.new_zeros(0)


class FlatModule:
    """A copy of a module whose trainable parameters and statistics are views of two flat vectors."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
            raise UsageError("the model has parameters without a shape; run it on a minibatch first")
        self.module = copy.deepcopy(model).to(device)
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not trained:
            raise UsageError("the model has no parameter to train")
        _check_dtypes(trained)
        self.parameters = list(trained.values())
        ends = list(itertools.accumulate((p.numel() for p in self.parameters), initial=0))
        self.places = {name: slice(*pair) for name, pair in zip(trained, itertools.pairwise(ends), strict=True)}
        self._frozen = frozen(self.module)
        self._shapes = [p.shape for p in self.parameters]
        self.initial = _flat(self.parameters, self.parameters[0])
        # Buffers of any other dtype, such as counters, are not averaged.
        dtype = _statistics_dtype(self.module, self.initial.dtype)
        floating = [b for b in self.module.buffers() if b.dtype == dtype]
        self.buffers = _flat(floating, self.initial)
        for buffer, view in zip(floating, views(self.buffers, [b.shape for b in floating]), strict=True):
            buffer.data = view
        self._others = {name: (b, b.clone()) for name, b in self.module.named_buffers() if b.dtype != dtype}
        self._bound = self.initial.new_empty(0)
        self.bind(self.initial)

    def release(self) -> None:
        """Let go of the initial parameters, for whoever binds another point next: `initial` keeps only their form."""
        self.initial = self.initial.to("meta")

    def enter(self, buffers: Tensor) -> None:
        """Start a client's training from the server's buffers; what is not averaged starts afresh at every client."""
        self.module.train()
        for module in self._frozen:
            module.training = False
        self.buffers.copy_(buffers)
        for buffer, initial in self._others.values():
            buffer.copy_(initial)

    def check_tables(self) -> None:
        """Refuse a model whose training changes a buffer that is not averaged because of its dtype."""
        for name, (buffer, initial) in self._others.items():
            if buffer.is_floating_point() and not torch.equal(buffer, initial):
                raise UsageError(
                    f"the buffer {name} of the model has dtype {buffer.dtype} and changes in training, "
                    f"but the statistics that clients share have {self.buffers.dtype}; give them one dtype"
                )

    def bind(self, point: Vector) -> None:
        """Make the parameters views of ``point``, (d,) or (1, d)."""
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
            buffer.data = buffer.data.clone()  # after a deep copy they still share one storage
        return result.eval()


def convolves(model: nn.Module, features: Any) -> bool:
    """Whether the model has image convolutions, which are faster if the channels of a pixel are stored together."""
    images = isinstance(features, Tensor) and features.ndim == 4
    return images and any(isinstance(module, nn.Conv2d) for module in model.modules())


def frozen(model: nn.Module) -> list[nn.Module]:
    """Return the parts that ``eval()`` has frozen. A model entirely in evaluation mode has none."""
    parts = [module for module in model.modules() if not module.training]
    return parts if any(module.training for module in model.modules()) else []


def _check_dtypes(parameters: Mapping[str, Tensor]) -> None:
    first = next(iter(parameters))
    for name, value in parameters.items():
        if not value.is_floating_point():
            raise UsageError(f"the parameter {name} of the model has dtype {value.dtype}, but must be real")
        if value.dtype != parameters[first].dtype:
            raise UsageError(
                f"the parameter {name} of the model has dtype {value.dtype}, but {first} has "
                f"{parameters[first].dtype}; give all of them one dtype"
            )


def _statistics_dtype(model: nn.Module, usual: torch.dtype) -> torch.dtype:
    """Return the dtype of BatchNorm's statistics, which may differ from that of the parameters."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase))
    return next((norm.running_mean.dtype for norm in norms if norm.running_mean is not None), usual)
