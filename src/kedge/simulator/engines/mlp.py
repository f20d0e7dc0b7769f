"""The fused engine: local steps of stacks of linear layers, forward and backward written out.

Five things make it fast. The weight gradient δᵀh is never stored: the step W <- s W - eta a δᵀh is one matrix product
with accumulation. Several clients of a small model share every operation, as one batched product. Narrow layers are
turned during the steps, inputs first: a product of a minibatch with such a matrix is up to four times as fast.
Gradients at a point that is fixed during the round (the second gradient of variance reduction) come from one pass over
the samples of all steps, kept as activations and δ; a step then multiplies [δ, δ'] by [h, h'], and the first layer,
whose inputs coincide, only adds the δ. The mean of the gradients follows from the displacement.

Tensors are (clients, samples, units). Each client's part begins at a cache line, because the last bit of a product may
depend on where in memory its factors lie; so a client's result does not depend on its group.
"""

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.client import Loss
from kedge.direction import Direction, Vector
from kedge.exchange import Local
from kedge.local_steps import local_steps
from kedge.problem import Federation
from kedge.round import Done, Work
from kedge.simulator.engines.base import Engine, Setup, compute_threads
from kedge.simulator.engines.layers import Layer, known_loss, plan
from kedge.simulator.engines.mlp_steps import Anchored, Losses, StepSamples

PRECISION = 1e5
"""The smallest eta K a, in units of rounding, that gives a mean gradient from the displacement: 0.012 in float32."""

GROUP = 5
"""The most clients in a group: more would save little more of the interpreter's time."""

DEVICE_GROUP = 32
"""The most clients in a group on devices other than the CPU, where only few, large operations matter."""

NARROW = 128
"""The most outputs of a first layer for which turning pays; between 128 and 200 it begins to cost time."""

SMALL = 1_000_000
"""The most parameters of all clients in a group: more would not fit into the caches."""

CACHE_LINE = 64


class Affine(NamedTuple):
    """Views of the vectors of a group: a layer's parameters in the shapes that products need."""

    weight: Tensor  # (clients, outputs, inputs)
    turned: Tensor  # (clients, inputs, outputs)
    bias: Tensor | None  # (clients, 1, outputs)
    column: Tensor | None  # (clients, outputs, 1)


def rows(clients: int, *shape: int, like: Tensor) -> Tensor:
    """Return uninitialised memory of this shape for each client, at cache lines."""
    line = CACHE_LINE // like.element_size()
    size = math.prod(shape)
    return like.new_empty(clients, -(-size // line) * line)[:, :size].view(clients, *shape)


class MLPEngine:
    """Runs stacks of linear layers without autograd."""

    name = "fused-mlp"

    def __init__(self, layers: list[Layer], federation: Federation, loss: Loss) -> None:
        self.layers = layers
        self.federation = federation
        known = known_loss(loss)
        assert known is not None, "plan() has checked the loss"
        self.loss = known
        self.classes = layers[-1].outputs
        self.parameters = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers)
        self._turns = layers[0].outputs <= NARROW and federation.features.device.type == "cpu"
        self._one_hot = torch.eye(self.classes, dtype=federation.features.dtype, device=federation.features.device)
        self._scratch: dict[str, Tensor] = {}

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a group may have."""
        if self._one_hot.device.type != "cpu":
            return 1 if batch_size is None or self.parameters > SMALL else DEVICE_GROUP
        group = min(GROUP, SMALL // self.parameters)
        if batch_size is None or group <= 1:
            return 1
        sizes = tuple((layer.inputs, layer.outputs) for layer in self.layers)
        return group if grouping_is_exact(sizes, batch_size, self._one_hot.dtype) else 1

    def run(self, work: Work) -> Done:
        """Run local steps, fused where the rule allows it."""
        rule = work.rule.clean()
        losses = Losses(self.loss, []) if work.measured else None
        if self._can_fuse(rule, work):
            local = self._fused(rule, work, self._gather(work), losses)
            calls = work.steps * (1 + len(rule.anchors))
            return Done(local, work.buffers, calls, losses.of_clients() if losses else ())
        calls, data = 0, None

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls, data
            calls += 1
            data = data or self._gather(work)  # only here: an exchange without steps reads no samples
            return self._gradient(point, work.weight_decay, *data.step(k), None if second else losses)

        local = local_steps(rule, work.start, work.eta, work.steps, gradient, work.needs, work.update, work.clients)
        return Done(local, work.buffers, calls, losses.of_clients() if losses else ())

    def _can_fuse(self, rule: Direction, work: Work) -> bool:
        fixed = all(anchor.point is not None for anchor in rule.anchors)
        known = not work.needs.last_direction and not (work.needs.mean_grad and not self._can_derive(rule, work))
        masked_anchors = bool(rule.anchors) and work.seeds is not None and work.batches is None
        # One step is a gradient query: it needs the direction itself, not a difference of models.
        plain = work.update is None and work.steps > 1
        return plain and bool(rule.grad) and not rule.memory and fixed and known and not masked_anchors

    @staticmethod
    def _can_derive(rule: Direction, work: Work) -> bool:
        """Whether the displacement gives the mean gradient accurately: the rounding of x is divided by eta K a."""
        divisor = work.eta * work.steps * abs(rule.grad)
        return not rule.displacement and divisor >= PRECISION * torch.finfo(work.start.dtype).eps

    def _gather(self, work: Work) -> StepSamples:
        """Copy the samples of all steps, into memory that the next call overwrites."""
        federation, clients = self.federation, len(work.clients)
        source = federation.features.flatten(1)
        own = [federation.indices[client] for client in work.clients]
        chosen = own
        if work.batches is not None:
            drawn = torch.from_numpy(work.batches).flatten(1).to(source.device)
            chosen = [part[rows] for part, rows in zip(own, drawn, strict=True)]
        count = len(chosen[0])
        features = self._kept("features", clients, count, self.layers[0].inputs)
        for part, into in zip(chosen, features, strict=True):
            torch.index_select(source, 0, part, out=into)
        labels = federation.labels.index_select(0, chosen[0] if clients == 1 else torch.cat(chosen))
        target = labels if labels.is_floating_point() else self._one_hot.index_select(0, labels)
        size = count if work.batches is None else work.batches.shape[2]
        masks = self._masks(work, size, features)
        return StepSamples(features, target.view(clients, count, self.classes), size, work.batches is None, masks)

    def _kept(self, name: str, clients: int, *shape: int) -> Tensor:
        """Return `rows` that are reused: fresh memory would cost more than the work done with it."""
        if name not in self._scratch or self._scratch[name].shape != (clients, *shape):
            self._scratch[name] = rows(clients, *shape, like=self._one_hot)
        return self._scratch[name]

    def _masks(self, work: Work, size: int, like: Tensor) -> list[list[Tensor | None]]:
        """Draw, for each step and layer, the dropout masks that torch would draw after the same seeds."""
        if work.seeds is None:
            return [[None] * len(self.layers)] * work.steps
        masks: list[list[Tensor | None]] = []
        for seeds in work.seeds.T:
            sources = [torch.Generator(like.device).manual_seed(int(seed)) for seed in seeds]
            masks.append([self._mask(layer, size, like, sources) for layer in self.layers])
        return masks

    @staticmethod
    def _mask(layer: Layer, size: int, like: Tensor, sources: list[torch.Generator]) -> Tensor | None:
        if not layer.dropout:
            return None
        kept = 1 - layer.dropout
        shape = (size, layer.outputs)
        drawn = [like.new_empty(shape).bernoulli_(kept, generator=source).div_(kept) for source in sources]
        return torch.stack(drawn)

    def _views(self, vectors: Vector, *, turned: bool = False) -> list[Affine]:
        """Cut vectors (clients, d) into the parameters of the layers, without a copy."""
        views: list[Affine] = []
        begin = 0
        for layer in self.layers:
            end = begin + layer.outputs * layer.inputs
            weight = vectors[:, begin:end]
            if turned:
                weight = weight.view(-1, layer.inputs, layer.outputs).mT
            else:
                weight = weight.view(-1, layer.outputs, layer.inputs)
            begin = end + layer.outputs * layer.bias
            bias = vectors[:, end:begin].unsqueeze(1) if layer.bias else None
            views.append(Affine(weight, weight.mT, bias, None if bias is None else bias.mT))
        return views

    def _turned(self, vectors: Vector, *, back: bool = False) -> Vector:
        """Copy vectors so that weights have inputs first, or outputs first again; one that all share is copied once."""
        if vectors.ndim == 1 or vectors.stride(0) == 0:
            vectors = vectors.reshape(-1, self.parameters)[:1]
        copies = rows(len(vectors), self.parameters, like=vectors)
        for one, copy in zip(self._views(vectors, turned=back), self._views(copies, turned=not back), strict=True):
            for matrix, place in zip(one.weight, copy.weight, strict=True):  # torch is faster at them one by one
                place.copy_(matrix)
            if one.bias is not None and copy.bias is not None:
                copy.bias.copy_(one.bias)
        return copies

    def _buffers(self, clients: int, size: int, name: str | None = None) -> list[Tensor]:
        """Return memory for a number of every unit and sample; with a name, memory that is used again."""
        if name is None:
            return [rows(clients, size, layer.outputs, like=self._one_hot) for layer in self.layers]
        return [
            self._kept(f"{name} {number}", clients, size, layer.outputs) for number, layer in enumerate(self.layers)
        ]

    def _forward(
        self, parameters: list[Affine], h: Tensor, masks: Sequence[Tensor | None], into: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs of every layer followed by the output, and the activations before dropout."""
        inputs, outputs = [h], []
        for layer, own, mask, out in zip(self.layers, parameters, masks, into, strict=True):
            if own.bias is None:
                torch.bmm(h, own.turned, out=out)
            else:
                torch.baddbmm(own.bias, h, own.turned, out=out)
            h = layer.activation.forward(out) if layer.activation else out
            outputs.append(h)
            if mask is not None:
                h = torch.mul(h, mask, out=torch.empty_like(h))
            inputs.append(h)
        return inputs, outputs

    def _back(
        self, number: int, delta: Tensor, weight: Tensor, outputs: list[Tensor], mask: Tensor | None, out: Tensor
    ) -> Tensor:
        """Take δ of layer ``number`` to the layer before it."""
        torch.bmm(delta, weight, out=out)
        if mask is not None:
            out.mul_(mask)
        activation = self.layers[number - 1].activation
        return activation.backward(out, outputs[number - 1]) if activation else out

    def _gradient(
        self, point: Vector, decay: float, features: Tensor, target: Tensor, masks: Sequence[Tensor | None],
        losses: Losses | None,
    ) -> Vector:  # fmt: skip
        clients, size = features.shape[:2]
        grad = self._kept("gradient", clients, self.parameters)
        parameters, into = self._views(point.expand_as(grad)), self._views(grad)
        back = self._buffers(clients, size, "back")
        inputs, outputs = self._forward(parameters, features, masks, self._buffers(clients, size, "forth"))
        if losses is not None:
            losses.add(inputs[-1].clone(), target)
        delta = self.loss.delta(inputs[-1], target, back[-1]).mul_(self.loss.factor(size, self.classes))
        for number in reversed(range(len(self.layers))):
            _product(delta, inputs[number], into[number])
            if number:
                before = back[number - 1]
                delta = self._back(number, delta, parameters[number].weight, outputs, masks[number - 1], before)
        return grad.add_(point, alpha=decay) if decay else grad

    def _fused(self, rule: Direction, work: Work, data: StepSamples, losses: Losses | None) -> Local:
        eta, a, clients = work.eta, rule.grad, len(work.clients)
        turn = self._turned if self._turns else lambda vectors, back=False: vectors
        x = rows(clients, self.parameters, like=work.start).copy_(turn(work.start))
        parameters = self._views(x, turned=self._turns)
        anchors = [self._anchor(anchor.point, anchor.weight / a, data) for anchor in _fixed(rule)]
        scale, constant = self._linear_part(rule, work)
        constant = None if constant is None else turn(constant)
        rate = -eta * a * self.loss.factor(data.size, self.classes)
        forth, back = self._buffers(clients, data.size, "forth"), self._buffers(clients, data.size, "back")
        ones = [x.new_ones(clients, data.size * (1 + len(anchors) * (n > 0)), 1) for n in range(len(self.layers))]
        for k in range(work.steps):
            features, target, masks = data.step(k)
            if losses is not None:
                forth[-1] = self._kept(f"output {k}", clients, data.size, self.classes)
                losses.add(forth[-1], target)
            inputs, outputs = self._forward(parameters, features, masks, forth)
            delta = self.loss.delta(inputs[-1], target, back[-1])
            for number in reversed(range(len(self.layers))):
                weight, _, _, column = parameters[number]
                step, h = delta, inputs[number]
                if number:
                    delta = self._back(number, delta, weight, outputs, masks[number - 1], back[number - 1])
                for place, anchored in enumerate(anchors):
                    other, other_h = anchored.step(k, number, data)
                    if number:
                        step = self._joined(f"step {number} {place}", step, other)
                        h = self._joined(f"h {number} {place}", h, other_h)
                    else:
                        step.add_(other)  # the inputs coincide, so the products add up in δ
                weight.baddbmm_(step.mT, h, beta=scale, alpha=rate)
                if column is not None:
                    column.baddbmm_(step.mT, ones[number], beta=scale, alpha=rate)
            if constant is not None:
                x.add_(constant, alpha=-eta)
        x = turn(x, back=True)
        mean_grad = self._mean_gradient(rule, work, x, anchors, data) if work.needs.mean_grad else None
        steps = torch.tensor(work.steps, dtype=x.dtype)
        return Local(work.start, x, eta, steps, kept_mean_grad=mean_grad)

    def _joined(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        clients, size, units = one.shape
        together = self._kept(name, clients, size + other.shape[1], units)
        return torch.cat([one, other], 1, out=together)

    def _linear_part(self, rule: Direction, work: Work) -> tuple[float, Vector | None]:
        """Weight decay and the pull to the start as parts of x <- scale x - eta (constant + a ∇F + ...)."""
        scale = 1 - work.eta * (rule.grad * work.weight_decay + rule.displacement)
        terms = [] if rule.constant is None else [rule.constant]
        if rule.displacement:
            terms.append(-rule.displacement * work.start)
        if work.weight_decay:
            terms += [anchor.weight * work.weight_decay * anchor.point for anchor in _fixed(rule)]
        return scale, sum(terms[1:], terms[0]) if terms else None

    def _mean_gradient(
        self, rule: Direction, work: Work, x: Vector, anchors: list[Anchored], data: StepSamples
    ) -> Vector:
        """Return the mean of the gradients: the displacement minus everything else that moved x."""
        mean = torch.sub(work.start, x).mul_(1 / (work.eta * work.steps * rule.grad))
        if rule.constant is not None:
            mean.sub_(rule.constant, alpha=1 / rule.grad)
        for anchor, anchored in zip(_fixed(rule), anchors, strict=True):
            mean.sub_(self._mean_anchored(anchored, data, work.steps))
            if work.weight_decay:
                mean.sub_(anchor.point, alpha=anchor.weight * work.weight_decay / rule.grad)
        return mean

    def _anchor(self, point: Vector, weight: float, data: StepSamples) -> Anchored:
        """Return ``weight`` times the gradients of all steps at ``point``, as what they are products of."""
        features, target, masks = data.everything()
        clients, size = features.shape[:2]
        parameters = self._views(point.expand(clients, -1))
        deltas = self._buffers(clients, size)
        inputs, outputs = self._forward(parameters, features, masks, self._buffers(clients, size))
        delta = self.loss.delta(inputs[-1], target, deltas[-1]).mul_(weight)
        for number in reversed(range(1, len(self.layers))):
            before = deltas[number - 1]
            delta = self._back(number, delta, parameters[number].weight, outputs, masks[number - 1], before)
        return Anchored(deltas, inputs)

    def _mean_anchored(self, anchored: Anchored, data: StepSamples, steps: int) -> Vector:
        """Return the mean over the steps of an anchor's weighted gradients, without weight decay."""
        total = self._kept("gradient", len(data.features), self.parameters)
        for number, into in enumerate(self._views(total)):
            _product(anchored.deltas[number], anchored.inputs[number], into)
        passes = 1 if data.repeated else steps
        return total.mul_(self.loss.factor(data.size, self.classes) / passes)


def _product(delta: Tensor, h: Tensor, into: Affine) -> None:
    """Write the gradient with respect to a layer's parameters."""
    torch.bmm(delta.mT, h, out=into.weight)
    if into.bias is not None:
        torch.sum(delta, 1, keepdim=True, out=into.bias)


@functools.cache
def grouping_is_exact(sizes: tuple[tuple[int, int], ...], batch_size: int, dtype: torch.dtype) -> bool:
    """Whether the products of clients in a group are, to the bit, those of each alone; tested on random numbers."""
    source = torch.Generator().manual_seed(0)
    like = torch.empty(0, dtype=dtype)

    def same(one: Tensor, other: Tensor) -> bool:
        alone = [torch.bmm(one[i : i + 1], other[i : i + 1]) for i in range(len(one))]
        return torch.equal(torch.cat(alone), torch.bmm(one, other))

    def random(*shape: int) -> Tensor:
        return rows(3, *shape, like=like).normal_(generator=source)

    with compute_threads(1):
        return all(
            same(h, weight.mT) and same(delta, weight) and same(delta.mT, h) and same(h.mT, delta)
            for inputs, outputs in sizes
            for h, delta in [(random(batch_size, inputs), random(batch_size, outputs))]
            for weight in (random(outputs, inputs), random(inputs, outputs).mT)
        )


class FixedAnchor(NamedTuple):
    """An anchor whose point does not move during the round."""

    weight: float
    point: Vector


def _fixed(rule: Direction) -> list[FixedAnchor]:
    return [FixedAnchor(anchor.weight, anchor.point) for anchor in rule.anchors if anchor.point is not None]


def builder(setup: Setup) -> Callable[[], Engine] | None:
    """Return a builder of engines, or None if this kind cannot run the model."""
    layers = plan(setup.model, setup.loss, setup.federation.labels)
    if layers is None:
        return None
    return partial(MLPEngine, layers, setup.federation, setup.loss)
