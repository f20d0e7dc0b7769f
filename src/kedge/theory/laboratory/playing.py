"""Plays an algorithm's own rules on clients with exact gradients and additive noise, for several replicas at once.

The rules are elementwise, so vectors may be (P, d) at the server and (S, P, d) at the cohort: P replicas, each with its
own cohorts and noise.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kedge.algorithm import Algorithm
from kedge.exchange import Effort, Heard
from kedge.local_steps import local_steps
from kedge.round import Form
from kedge.theory.laboratory.worlds import World


@dataclass(frozen=True)
class Trajectory:
    """What happened in every round, one column per replica."""

    gradients: Tensor
    """|∇f(x^r)|², (rounds, P)."""
    errors: Tensor
    """|∇f(x^r) - g^{r+1}|², with g the server's step divided by gamma."""
    drifts: Tensor
    """mean_i |x_i^{r,K} - x^r|², over the cohort, after the last step."""
    server: Any

    def mean(self) -> float:
        """Mean |∇f|² over the rounds and the replicas: what the theorems bound."""
        return float(self.gradients.mean())

    def worst(self) -> float:
        """Mean |∇f|² over the rounds, of the replica where it is largest."""
        return float(self.gradients.mean(0).max())

    def end(self, share: float = 0.25) -> float:
        """Mean |∇f|² over the last rounds and the replicas."""
        last = self.gradients[-max(1, int(share * len(self.gradients))) :]
        return float(last.mean())

    def rounds_to(self, target: float) -> float:
        """How many rounds until the mean over the replicas stays below the target; inf if it never does."""
        above = torch.nonzero(~(self.gradients.mean(1) <= target))  # not a number counts as above
        if len(above) == 0:
            return 0
        last = int(above[-1])
        return last + 1 if last + 1 < len(self.gradients) else math.inf


def play(
    algorithm: Algorithm[Any, Any],
    world: World,
    rounds: int,
    *,
    steps: int = 10,
    cohort: int | None = None,
    replicas: int = 4,
    seed: int = 0,
    x: Tensor | None = None,
) -> Trajectory:
    """Run the algorithm for this many rounds."""
    rng = torch.Generator().manual_seed(seed)
    N = world.clients
    S = cohort or N
    start = (world.start if x is None else x).expand(replicas, -1).clone()
    server, first = algorithm.init_server(start), algorithm.init_client(start)
    state = type(first)(*(vector.expand(N, *vector.shape).clone() for vector in first))
    lanes = torch.arange(replicas)
    gradients, errors, drifts = [], [], []
    (exchange,) = algorithm.exchanges(0, 0)
    needs = Form.of(algorithm, exchange).needs
    gamma = getattr(algorithm, "gamma", None) or algorithm.eta * steps
    for round in range(-1, rounds):
        before, drift = server.x, 0.0
        exact = world.mean_gradient(before) if round >= 0 else before
        if round >= 0 and not bool(exact.isfinite().all()):
            break
        sampled = torch.rand(N, replicas, generator=rng).argsort(0)[:S]
        everyone = torch.arange(N).unsqueeze(1).expand(-1, replicas)
        for exchange in algorithm.opening() if round < 0 else algorithm.exchanges(round, 0):
            rows = everyone if exchange.cohort == "everyone" or round < 0 else sampled
            effort = exchange.effort(Effort(steps))
            own = type(state)(*(vector[rows, lanes] for vector in state))
            down = exchange.broadcast(server)
            begin = exchange.start(down, own).expand(len(rows), *before.shape)
            noise = world.sigma * math.sqrt(1 / begin.shape[-1] / (effort.minibatches or 1)) if world.sigma else 0.0
            drawn = torch.randn(effort.steps, *begin.shape, generator=rng, dtype=begin.dtype) * noise if noise else None

            def gradient(
                point: Tensor, k: int, second: bool, rows: Tensor = rows, drawn: Tensor | None = drawn,
                shape: Tensor = begin,
            ) -> Tensor:  # fmt: skip
                exact = world.gradients(point.expand_as(shape), rows)
                return exact if drawn is None else exact + drawn[k]

            rule = exchange.direction(down, own)
            local = local_steps(rule, begin, algorithm.eta, effort.steps, gradient, needs)
            drift = (local.x - before).square().sum(-1).mean(0)
            up, new = exchange.reply(down, own, local)
            for vector, value in zip(state, new, strict=True):
                vector[rows, lanes] = value.expand_as(begin)
            mean = type(up)(*(value.mean(0) for value in up))
            server = exchange.fold(server, mean, Heard(len(rows) / N, steps))
        if round >= 0:
            step = (before - server.x) / gamma
            gradients.append(exact.square().sum(-1))
            errors.append((exact - step).square().sum(-1))
            drifts.append(torch.as_tensor(drift).expand(replicas))
    return Trajectory(torch.stack(gradients), torch.stack(errors), torch.stack(drifts), server)
