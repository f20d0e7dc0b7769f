"""K local steps of any `Direction`: what every engine must compute.

x_i^{r,k+1} = x_i^{r,k} - eta g_i^{r,k},   k = 0..K-1
"""

from collections.abc import Callable

import torch

from kedge.direction import Direction, Vector
from kedge.exchange import Local, Needs

Gradient = Callable[[Vector, int, bool], Vector]
"""gradient(x, k, second): the gradient at x of the minibatch of step k. The same k means the same minibatch and the
same dropout mask. ``second``: x is not the local model, so the call must have no side effect (BatchNorm's statistics
stay the same). The result may be a buffer that the next call overwrites."""


def local_steps(rule: Direction, start: Vector, eta: float, steps: int, gradient: Gradient, needs: Needs) -> Local:
    """Run K = ``steps`` local steps from ``start``, for one client or for a cohort of equal effort."""
    rule = rule.clean()
    x = start.clone()
    direction = torch.zeros_like(x) if rule.first is None else rule.first.expand_as(x).clone()
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

        x.add_(direction, alpha=-eta)
    count = torch.as_tensor(steps, dtype=x.dtype, device=x.device)
    return Local(
        start,
        x,
        eta,
        count,
        only_direction=direction if steps == 1 else None,
        kept_mean_grad=None if total is None else total / count.clamp(min=1),
        kept_last_direction=direction if needs.last_direction else None,
    )


def _expanded(point: Vector | None, x: Vector) -> Vector | None:
    return None if point is None else point.expand_as(x).clone()
