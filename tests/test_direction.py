"""The algebra of directions: an expression means what its operators say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kedge.direction import DISPLACEMENT, GRAD, LAST_GRAD, Anchor, Direction, grad_at, last_direction, last_grad
from kedge.exchange import Needs
from kedge.local_steps import local_steps

X = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
POINT = torch.tensor([0.3, 0.7, -1.1], dtype=torch.float64)
numbers = st.floats(-3, 3).map(lambda value: round(value, 3))


def gradient(point, k, second=False):
    return (k + 1) * point + point**2


def first_step(direction: Direction) -> torch.Tensor:
    """g_i^{r,0} from X."""
    return local_steps(direction, X, 0.1, 1, gradient, Needs(last_direction=True)).mean_direction


ATOMS = [
    (GRAD, gradient(X, 0)),
    (grad_at(POINT), gradient(POINT, 0)),
    (LAST_GRAD, gradient(X, 0)),
    (last_grad(POINT), gradient(POINT, 0)),
    (DISPLACEMENT, torch.zeros(3, dtype=torch.float64)),
]


@given(st.lists(st.tuples(numbers, st.integers(0, len(ATOMS) - 1), st.booleans()), min_size=1, max_size=6), numbers)
def test_sums_differences_and_multiples_are_those_of_the_vectors(terms, scale):
    expression, value = scale * POINT, scale * POINT
    for factor, which, subtracted in terms:
        atom, vector = ATOMS[which]
        sign = -1 if subtracted else 1
        expression = expression - factor * atom if subtracted else atom * factor + expression
        value = value + sign * factor * vector
    torch.testing.assert_close(first_step(expression), value, rtol=0, atol=1e-12)


def test_memory_starts_with_the_given_direction_and_follows_the_steps():
    rule = last_direction(first=POINT) + GRAD - LAST_GRAD
    x, u, last, eta = X.clone(), POINT, X, 0.1
    for k in range(4):
        u = u + gradient(x, k) - gradient(last, k)
        x, last = x - eta * u, x
    local = local_steps(rule, X, eta, 4, gradient, Needs(last_direction=True))
    torch.testing.assert_close(local.x, x, rtol=0, atol=1e-14)
    torch.testing.assert_close(local.last_direction, u, rtol=0, atol=1e-14)


def test_a_recursion_does_not_evaluate_what_cancels():
    calls = []
    rule = last_direction(first=POINT) + GRAD - LAST_GRAD
    local_steps(rule, X, 0.1, 5, lambda p, k, second: calls.append(k) or gradient(p, k), Needs(last_direction=True))
    assert calls == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_coefficient_of_zero_costs_no_gradient():
    calls = []
    local_steps(
        GRAD - 0.0 * grad_at(POINT), X, 0.1, 3, lambda p, k, s: calls.append(k) or p, Needs(last_direction=True)
    )
    assert calls == [0, 1, 2]


def test_gradients_at_one_point_merge():
    assert (grad_at(POINT) + 2 * grad_at(POINT)).anchors == (Anchor(3.0, POINT),)


def test_two_memories_are_refused():
    with pytest.raises(ValueError, match="one previous direction"):
        last_direction(POINT) + last_direction(X)
