"""The local direction g_i^{r,k} as data.

In every kedge algorithm, the direction of a local step is affine in five things: the gradient of the
minibatch at the local model, gradients *of the same minibatch* at other points (an old server model, or the
previous local iterate), the displacement x_i^{r,k} - x^r, the previous direction, and a vector that is
constant during the round. A `Direction` holds the coefficients; its operators let an algorithm read like the
paper::

    self.beta * (GRAD - client.c_i + down.c) + (1 - self.beta) * down.g

Vectors are collected with their coefficients and combined into one constant on first use, once per client and
round. An engine sees only the coefficients and may fuse them as it likes.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.errors import UsageError, shown

Vector = Tensor
"""A flat vector: (d,) for one client, (S, d) for a cohort. Every rule is elementwise and serves both."""


class Anchor(NamedTuple):
    """A further point at which the minibatch's gradient is taken, and the coefficient of that gradient."""

    weight: float
    point: Vector | None  # None: the previous local iterate x_i^{r,k-1}
    first: Vector | None = None  # x_i^{r,-1} of the previous iterate; None: x_i^{r,0} itself


class Term(NamedTuple):
    """A vector that is constant during the round, and its coefficient."""

    weight: float
    vector: Vector


@dataclass(frozen=True)
class Direction:
    """An affine form in the quantities of one local step."""

    grad: float = 0.0  # times ∇F(x_i^{r,k}; ξ)
    anchors: tuple[Anchor, ...] = ()  # times ∇F(point; ξ), the same ξ
    displacement: float = 0.0  # times x_i^{r,k} - x_i^{r,0}
    memory: float = 0.0  # times g_i^{r,k-1}
    first: Vector | None = None  # g_i^{r,-1}
    terms: tuple[Term, ...] = ()  # constant during the round

    @cached_property
    def constant(self) -> Vector | None:
        """The sum of the terms; None is zero."""
        # Start from a term with coefficient 1, if there is one: that saves a pass over memory.
        terms = sorted((term for term in self.terms if term.weight), key=lambda term: term.weight != 1)
        if not terms:
            return None
        (weight, total), *others = terms
        total = total if weight == 1 else weight * total
        for weight, vector in others:
            total = torch.add(total, vector, alpha=weight)
        return total

    __array_ufunc__ = None  # numpy's numbers leave the arithmetic to this class

    def __truediv__(self, scale: float) -> Direction:
        _check_scale(scale)
        return self * (1 / scale)

    def __add__(self, other: Direction | Vector) -> Direction:
        _check_summand(other)
        if isinstance(other, Tensor):
            return replace(self, terms=(*self.terms, Term(1.0, other)))
        if self.memory and other.memory:
            raise ValueError("a direction may contain only one previous direction")
        past = self if self.memory else other
        return Direction(
            grad=self.grad + other.grad,
            anchors=_merged(self.anchors + other.anchors),
            displacement=self.displacement + other.displacement,
            memory=past.memory,
            first=past.first,
            terms=self.terms + other.terms,
        )

    def __mul__(self, scale: float) -> Direction:
        _check_scale(scale)
        return Direction(
            grad=scale * self.grad,
            anchors=tuple(anchor._replace(weight=scale * anchor.weight) for anchor in self.anchors),
            displacement=scale * self.displacement,
            memory=scale * self.memory,
            first=self.first,
            terms=tuple(Term(scale * term.weight, term.vector) for term in self.terms),
        )

    def __neg__(self) -> Direction:
        return self * -1.0

    def __sub__(self, other: Direction | Vector) -> Direction:
        _check_summand(other)
        if isinstance(other, Tensor):
            return replace(self, terms=(*self.terms, Term(-1.0, other)))
        return self + (-other)

    def __rsub__(self, other: Vector) -> Direction:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def clean(self) -> Direction:
        """Drop anchors with coefficient zero, so that they are not evaluated (beta = 1 costs no second gradient)."""
        return replace(self, anchors=tuple(anchor for anchor in self.anchors if anchor.weight))


_AFFINE = (
    "a direction is affine: a number times GRAD, GRAD plus a vector of the round; what changes a gradient in any other "
    "way is a LocalUpdate"
)


def _check_scale(scale: object) -> None:
    """Refuse a product that is not affine."""
    if isinstance(scale, Direction):
        raise UsageError(f"a direction is multiplied by a direction, but {_AFFINE}")
    if isinstance(scale, Tensor):
        raise UsageError(f"a direction is multiplied by a tensor of shape {tuple(scale.shape)}, but {_AFFINE}")
    if not isinstance(scale, numbers.Real):
        raise UsageError(f"a direction is multiplied by {shown(scale)}, but {_AFFINE}")


def _check_summand(other: object) -> None:
    """Refuse a sum that is not affine."""
    if not isinstance(other, Direction | Tensor):
        raise UsageError(f"{shown(other)} is added to a direction, but {_AFFINE}")


def _merged(anchors: tuple[Anchor, ...]) -> tuple[Anchor, ...]:
    merged: list[Anchor] = []
    for new in anchors:
        for place, old in enumerate(merged):
            if old.point is new.point and old.first is new.first:
                merged[place] = old._replace(weight=old.weight + new.weight)
                break
        else:
            merged.append(new)
    return tuple(merged)


GRAD = Direction(grad=1.0)
"""∇F(x_i^{r,k}; ξ_i^{r,k}): the gradient at the local model."""

LAST_GRAD = Direction(anchors=(Anchor(1.0, None),))
"""∇F(x_i^{r,k-1}; ξ_i^{r,k}): the same minibatch at the previous local iterate, x_i^{r,-1} = x_i^{r,0}."""

DISPLACEMENT = Direction(displacement=1.0)
"""x_i^{r,k} - x_i^{r,0}."""


def grad_at(point: Vector) -> Direction:
    """∇F(point; ξ_i^{r,k}): the same minibatch at a point that is constant during the round."""
    return Direction(anchors=(Anchor(1.0, point),))


def last_grad(first: Vector) -> Direction:
    """`LAST_GRAD` with x_i^{r,-1} = ``first``."""
    return Direction(anchors=(Anchor(1.0, None, first),))


def last_direction(first: Vector) -> Direction:
    """g_i^{r,k-1}, the direction of the previous step, with g_i^{r,-1} = ``first``."""
    return Direction(memory=1.0, first=first)
