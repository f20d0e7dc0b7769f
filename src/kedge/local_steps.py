"""K local steps of any `Direction`: what every engine must compute.

x_i^{r,k+1} = x_i^{r,k} - eta g_i^{r,k},   k = 0..K-1
"""

from collections.abc import Callable, Sequence

import torch

from kedge.direction import Direction, Vector
from kedge.exchange import Local, Needs
from kedge.local_update import LocalUpdate, Step

Gradient = Callable[[Vector, int, bool], Vector]
"""gradient(x, k, second): the gradient at x of the minibatch of step k. The same k means the same minibatch and the
same dropout mask. ``second``: x is not the local model, so the call must have no side effect (BatchNorm's statistics
stay the same). The result may be a buffer that the next call overwrites."""


def local_steps(
    rule: Direction,
    start: Vector,
    eta: float,
    steps: int,
    gradient: Gradient,
    needs: Needs,
    update: LocalUpdate | None = None,
    clients: Sequence[int] = (),
) -> Local:
    """Run K = ``steps`` local steps from ``start``, for one client or for a cohort of equal effort.

    With an ``update``, ``start`` is (clients, d).
    """
    rule = rule.clean()
    x = start.clone()
    move = direction = torch.zeros_like(x) if rule.first is None else rule.first.expand_as(x).clone()
    if update is not None:
        gradient, memory = _updated(update, gradient), update.begin(x)
    previous = [_expanded(a.first, x) if a.point is None else None for a in rule.anchors]
    total = torch.zeros_like(x) if needs.mean_grad else None
    for k in range(steps):
        if rule.memory:
            direction.mul_(rule.memory)
        else:
            direction.zero_()
        if rule.constant is not None:
            direction.add_(rule.constant)
        if rule.displacement:
            direction.add_(x - start, alpha=rule.displacement)

        # If the previous iterate is x itself (k = 0), the two share a gradient: SARAH starts without an evaluation.
        at_x = rule.grad + sum(
            a.weight for a, p in zip(rule.anchors, previous, strict=True) if a.point is None and p is None
        )
        if at_x or total is not None:
            grad = gradient(x, k, False)
            direction.add_(grad, alpha=at_x)
            if total is not None:
                total.add_(grad)
        for place, anchor in enumerate(rule.anchors):
            if anchor.point is not None:
                direction.add_(gradient(anchor.point, k, True), alpha=anchor.weight)
                continue
            point = previous[place]
            if point is not None:
                direction.add_(gradient(point, k, True), alpha=anchor.weight)
            previous[place] = x.clone() if point is None else point.copy_(x)

        if update is not None:
            move, memory = update.step(direction, memory, Step(x, k, eta, clients))
        x.add_(move, alpha=-eta)
    count = torch.as_tensor(steps, dtype=x.dtype, device=x.device)
    return Local(
        start,
        x,
        eta,
        count,
        only_direction=move if steps == 1 else None,
        kept_mean_grad=None if total is None else total.div_(count.clamp(min=1)),
        kept_last_direction=direction if needs.last_direction else None,
    )


def _updated(update: LocalUpdate, gradient: Gradient) -> Gradient:
    """Return what takes the gradients that an algorithm gets; only the first one at a point may have side effects."""

    def changed(x: Vector, k: int, second: bool) -> Vector:
        taken = second

        def at(point: Vector) -> Vector:
            nonlocal taken
            before, taken = taken, True
            return gradient(point, k, before)

        return update.gradient(x, at)

    return changed


def _expanded(point: Vector | None, x: Vector) -> Vector | None:
    return None if point is None else point.expand_as(x).clone()
