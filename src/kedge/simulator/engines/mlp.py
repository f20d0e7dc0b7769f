"""The fused engine: local steps of stacks of linear layers, forward and backward written out.

Three things make it fast. The weight gradient δᵀh is never stored: the step W <- s W - eta a δᵀh is one matrix product
with accumulation. Gradients at a point that is fixed during the round (the second gradient of variance reduction) come
from one pass over the samples of all steps, kept as activations and δ; a step then multiplies [δ, δ'] with [h, h'], and
the first layer, whose inputs coincide, only adds the δ. The mean of the gradients is found from the displacement.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from kedge.direction import Direction, Vector
from kedge.exchange import Local
from kedge.local_steps import local_steps
from kedge.problem import Federation
from kedge.simulator.engines.base import Done, Job, Loss
from kedge.simulator.engines.module import is_cross_entropy, is_plain, views

aten: Any = torch.ops.aten

Parameters = list[tuple[Tensor, Tensor | None]]

PRECISION = 1e5
"""The least eta K a, in units of rounding, to find a mean gradient from the displacement: 0.012 in float32."""


@dataclass(frozen=True)
class Activation:
    """An activation in place, and its backward from the output."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (δ after, output) -> δ before, in place


def _relu_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.threshold_backward.grad_input(delta, output, 0, grad_input=delta)
    return result


def _tanh_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.tanh_backward.grad_input(delta, output, grad_input=delta)
    return result


def _sigmoid_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.sigmoid_backward.grad_input(delta, output, grad_input=delta)
    return result


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, _relu_backward),
    nn.Tanh: Activation(torch.tanh_, _tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid_, _sigmoid_backward),
}


@dataclass(frozen=True)
class Layer:
    """A linear layer and what follows it."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation | None = None
    dropout: float = 0.0


def plan(model: nn.Module, loss: Loss, labels: Tensor) -> list[Layer] | None:
    """Return the layers of a model that this engine can run, or None."""
    if known_loss(loss) is None or any(_is_watched(module) for module in model.modules()):
        return None
    modules = list(_flattened(model))
    while modules and type(modules[0]) is nn.Flatten and modules[0].start_dim == 1:
        modules.pop(0)
    layers: list[Layer] = []
    for module in modules:
        last = layers[-1] if layers else None
        if type(module) is nn.Linear:
            layers.append(Layer(module.in_features, module.out_features, module.bias is not None))
        elif type(module) in ACTIVATIONS and last and last.activation is None and not last.dropout:
            layers[-1] = dataclasses.replace(last, activation=ACTIVATIONS[type(module)])
        elif type(module) is nn.Dropout and last and not last.dropout and module.p < 1:
            layers[-1] = dataclasses.replace(last, dropout=module.p)
        else:
            return None
    return layers if _is_complete(model, layers) and _fits(layers[-1], loss, labels) else None


def _is_watched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _flattened(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [inner for child in module for inner in _flattened(child)]
    return [] if type(module) is nn.Identity else [module]


def _is_complete(model: nn.Module, layers: list[Layer]) -> bool:
    """Whether the layers are all there is: a plain output, no frozen, shared or foreign parameter, no buffer."""
    if not layers or layers[-1].activation is not None or layers[-1].dropout:
        return False
    count = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return trained == count and not list(model.buffers())


def _fits(last: Layer, loss: Loss, labels: Tensor) -> bool:
    """Whether the labels are classes, or targets of the output's own shape (torch would broadcast others)."""
    if is_cross_entropy(loss):
        return labels.ndim == 1 and not labels.is_floating_point()
    return labels.is_floating_point() and labels.shape[1:] == (last.outputs,)


@dataclass(frozen=True)
class KnownLoss:
    """A loss whose gradient by the output is factor x delta, the factor depending on the shape alone."""

    delta: Callable[[Tensor, Tensor], Tensor]  # (output, target); the output may be overwritten
    factor: Callable[[int, int], float]  # (samples, outputs)


CROSS_ENTROPY = KnownLoss(lambda output, target: torch.softmax(output, 1).sub_(target), lambda samples, _: 1 / samples)
SQUARED_ERROR = KnownLoss(lambda output, target: output.sub_(target), lambda samples, outputs: 2 / (samples * outputs))


def known_loss(loss: Loss) -> KnownLoss | None:
    """Return what is known of the gradient of ``loss``."""
    if is_cross_entropy(loss):
        return CROSS_ENTROPY
    return SQUARED_ERROR if loss is mse_loss or is_plain(loss, nn.MSELoss) else None


class MLPEngine:
    """Runs stacks of linear layers without autograd."""

    name = "fused-mlp"

    def __init__(self, layers: list[Layer], federation: Federation, loss: Loss, weight_decay: float) -> None:
        self.layers = layers
        self.federation = federation
        self.weight_decay = weight_decay
        known = known_loss(loss)
        assert known is not None, "plan() has checked the loss"
        self.loss = known
        self.classes = layers[-1].outputs
        shapes = [
            shape for layer in layers for shape in ((layer.outputs, layer.inputs), (layer.outputs,))[: 1 + layer.bias]
        ]
        self._shapes = [torch.Size(shape) for shape in shapes]

    def run(self, job: Job) -> Done:
        """Run a client's local steps, fused where the rule allows it."""
        rule = job.rule.clean()
        data = self._gather(job)
        if self._can_fuse(rule, job):
            local = self._fused(rule, job, data)
            return Done(local, job.buffers, job.steps * (1 + len(rule.anchors)))
        calls = 0

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls
            calls += 1
            return self._gradient(point, *data.step(k))

        local = local_steps(rule, job.start, job.eta, job.steps, gradient, job.needs)
        return Done(local, job.buffers, calls)

    def _can_fuse(self, rule: Direction, job: Job) -> bool:
        fixed = all(anchor.point is not None for anchor in rule.anchors)
        known = not job.needs.last_direction and not (job.needs.mean_grad and not self._can_derive(rule, job))
        masked_anchors = bool(rule.anchors) and job.seeds is not None and job.batches is None
        # One step is a gradient query: its direction is wanted as it is, not as a difference of models.
        return job.steps > 1 and bool(rule.grad) and not rule.memory and fixed and known and not masked_anchors

    @staticmethod
    def _can_derive(rule: Direction, job: Job) -> bool:
        """Whether the mean gradient can be had from the displacement: the rounding of x is divided by eta K a."""
        divisor = job.eta * job.steps * abs(rule.grad)
        return not rule.displacement and divisor >= PRECISION * torch.finfo(job.start.dtype).eps

    def _gather(self, job: Job) -> "Data":
        own = self.federation.indices[job.client]
        rows = own if job.batches is None else own[torch.from_numpy(job.batches).to(own.device).reshape(-1)]
        features = self.federation.features.index_select(0, rows).flatten(1)
        labels = self.federation.labels.index_select(0, rows)
        target = labels if labels.is_floating_point() else one_hot(labels, self.classes).to(features.dtype)
        size = len(own) if job.batches is None else job.batches.shape[1]
        return Data(features, target, size, job.batches is None, self._masks(job, size, features))

    def _masks(self, job: Job, size: int, like: Tensor) -> list[list[Tensor | None]]:
        """Draw, for each step and layer, the dropout mask that torch would draw after the same seed."""
        if job.seeds is None:
            return [[None] * len(self.layers)] * job.steps
        masks: list[list[Tensor | None]] = []
        for seed in job.seeds:
            source = torch.Generator().manual_seed(int(seed))
            masks.append([self._mask(layer, size, like, source) for layer in self.layers])
        return masks

    @staticmethod
    def _mask(layer: Layer, size: int, like: Tensor, source: torch.Generator) -> Tensor | None:
        kept = 1 - layer.dropout
        return (
            like.new_empty(size, layer.outputs).bernoulli_(kept, generator=source).div_(kept) if layer.dropout else None
        )

    def _parameters(self, flat: Vector) -> Parameters:
        parts = iter(views(flat, self._shapes))
        return [(next(parts), next(parts) if layer.bias else None) for layer in self.layers]

    def _forward(
        self, parameters: Parameters, h: Tensor, masks: Sequence[Tensor | None], into: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs of every layer followed by the output, and the activations before dropout."""
        inputs, outputs = [h], []
        for layer, (weight, bias), mask, out in zip(self.layers, parameters, masks, into, strict=True):
            z = torch.mm(h, weight.t(), out=out) if bias is None else torch.addmm(bias, h, weight.t(), out=out)
            h = layer.activation.forward(z) if layer.activation else z
            outputs.append(h)
            if mask is not None:
                h = h * mask
            inputs.append(h)
        return inputs, outputs

    def _back(
        self, number: int, delta: Tensor, weight: Tensor, outputs: list[Tensor], mask: Tensor | None, out: Tensor | None
    ) -> Tensor:
        """Take δ of layer ``number`` to the layer before it."""
        before = torch.mm(delta, weight, out=out)
        if mask is not None:
            before.mul_(mask)
        activation = self.layers[number - 1].activation
        return activation.backward(before, outputs[number - 1]) if activation else before

    def _gradient(self, point: Vector, features: Tensor, target: Tensor, masks: Sequence[Tensor | None]) -> Vector:
        grad = torch.empty_like(point)
        parameters, into, anew = self._parameters(point), self._parameters(grad), [None] * len(self.layers)
        inputs, outputs = self._forward(parameters, features, masks, anew)
        delta = self.loss.delta(inputs[-1], target).mul_(self.loss.factor(len(target), self.classes))
        for number in reversed(range(len(self.layers))):
            weight, bias = into[number]
            torch.mm(delta.t(), inputs[number], out=weight)
            if bias is not None:
                torch.sum(delta, 0, out=bias)
            if number:
                delta = self._back(number, delta, parameters[number][0], outputs, masks[number - 1], None)
        return grad.add_(point, alpha=self.weight_decay) if self.weight_decay else grad

    def _fused(self, rule: Direction, job: Job, data: "Data") -> Local:
        eta, a = job.eta, rule.grad
        x = job.start.clone()
        parameters = self._parameters(x)
        anchors = [self._anchor(anchor.point, anchor.weight / a, data) for anchor in _fixed(rule)]
        scale, constant = self._linear_part(rule, job)
        rate = -eta * a * self.loss.factor(data.size, self.classes)
        forth = [x.new_empty(data.size, layer.outputs) for layer in self.layers]
        back = [x.new_empty(data.size, layer.outputs) for layer in self.layers]
        ones = [x.new_ones(data.size * (1 + len(anchors) * (number > 0))) for number in range(len(self.layers))]
        for k in range(job.steps):
            features, target, masks = data.step(k)
            inputs, outputs = self._forward(parameters, features, masks, forth)
            delta = self.loss.delta(inputs[-1], target)
            for number in reversed(range(len(self.layers))):
                weight, bias = parameters[number]
                step, h = delta, inputs[number]
                if number:
                    delta = self._back(number, delta, weight, outputs, masks[number - 1], back[number - 1])
                for anchored in anchors:
                    other, other_h = anchored.step(k, number, data)
                    if number:
                        step, h = torch.cat([step, other]), torch.cat([h, other_h])
                    else:
                        step.add_(other)  # the inputs coincide, so the products add up in δ
                turned = step.t()
                weight.addmm_(turned, h, beta=scale, alpha=rate)
                if bias is not None:
                    bias.addmv_(turned, ones[number], beta=scale, alpha=rate)
            if constant is not None:
                x.add_(constant, alpha=-eta)
        return self._left(rule, job, x, anchors, data)

    def _linear_part(self, rule: Direction, job: Job) -> tuple[float, Vector | None]:
        """Weight decay and the pull to the start as parts of x <- scale x - eta (constant + a ∇F + ...)."""
        scale = 1 - job.eta * (rule.grad * self.weight_decay + rule.displacement)
        terms = [] if rule.constant is None else [rule.constant]
        if rule.displacement:
            terms.append(-rule.displacement * job.start)
        if self.weight_decay:
            terms += [anchor.weight * self.weight_decay * anchor.point for anchor in _fixed(rule)]
        return scale, sum(terms[1:], terms[0]) if terms else None

    def _left(self, rule: Direction, job: Job, x: Vector, anchors: "list[Anchored]", data: "Data") -> Local:
        mean_direction = (job.start - x).div_(job.eta * job.steps)
        mean_grad = None
        if job.needs.mean_grad:
            mean_grad = mean_direction.clone() if rule.constant is None else mean_direction - rule.constant
            for anchor, anchored in zip(_fixed(rule), anchors, strict=True):
                mean_grad.sub_(self._mean_gradient(anchored, data), alpha=rule.grad)
                if self.weight_decay:
                    mean_grad.sub_(anchor.point, alpha=anchor.weight * self.weight_decay)
            mean_grad.div_(rule.grad)
        return Local(job.start, x, mean_direction, torch.tensor(job.steps, dtype=x.dtype), mean_grad)

    def _anchor(self, point: Vector, weight: float, data: "Data") -> "Anchored":
        """Return ``weight`` times the gradients of all steps at ``point``, as what they are products of."""
        parameters = self._parameters(point)
        features, target, masks = data.everything()
        inputs, outputs = self._forward(parameters, features, masks, [None] * len(self.layers))
        delta = self.loss.delta(inputs[-1], target).mul_(weight)
        deltas = [delta]
        for number in reversed(range(1, len(self.layers))):
            delta = self._back(number, delta, parameters[number][0], outputs, masks[number - 1], None)
            deltas.insert(0, delta)
        return Anchored(deltas, inputs)

    def _mean_gradient(self, anchored: "Anchored", data: "Data") -> Vector:
        """Return the mean over the steps of an anchor's weighted gradients, without weight decay."""
        steps = len(anchored.deltas[0]) / data.size
        total = data.features.new_empty(sum(shape.numel() for shape in self._shapes))
        for number, (weight, bias) in enumerate(self._parameters(total)):
            torch.mm(anchored.deltas[number].t(), anchored.inputs[number], out=weight)
            if bias is not None:
                torch.sum(anchored.deltas[number], 0, out=bias)
        return total.mul_(self.loss.factor(data.size, self.classes) / steps)


class FixedAnchor(NamedTuple):
    """An anchor whose point does not move during the round."""

    weight: float
    point: Vector


def _fixed(rule: Direction) -> list[FixedAnchor]:
    return [FixedAnchor(anchor.weight, anchor.point) for anchor in rule.anchors if anchor.point is not None]


@dataclass(frozen=True)
class Data:
    """The samples of all steps of a client."""

    features: Tensor
    target: Tensor
    size: int  # samples of a step
    repeated: bool  # whether every step uses all of them
    masks: list[list[Tensor | None]]

    def cut(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the part of each step."""
        return [tensor] * len(self.masks) if self.repeated else torch.split(tensor, self.size)

    @functools.cached_property
    def _steps(self) -> list[tuple[Tensor, Tensor, list[Tensor | None]]]:
        return list(zip(self.cut(self.features), self.cut(self.target), self.masks, strict=True))

    def step(self, k: int) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
        """Return features, target and dropout masks of step k."""
        return self._steps[k]

    def everything(self) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
        """Return the same of all steps at once."""
        layers = zip(*self.masks, strict=True)
        masks = [None if layer[0] is None else torch.cat(layer) for layer in layers]
        return self.features, self.target, masks


@dataclass(frozen=True)
class Anchored:
    """The gradients at a fixed point of all steps, as what they are products of."""

    deltas: list[Tensor]
    inputs: list[Tensor]

    def step(self, k: int, number: int, data: Data) -> tuple[Tensor, Tensor]:
        """Return δ and h of a layer in step k."""
        rows = slice(0, data.size) if data.repeated else slice(k * data.size, (k + 1) * data.size)
        return self.deltas[number][rows], self.inputs[number][rows]
