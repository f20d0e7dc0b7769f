"""`measure`: the constants of a problem, from the clients' own data.

Everything is measured at a few points of a short trajectory, and the largest value counts: the theorems ask for bounds
that hold everywhere, and no finite number of gradients can give those. docs/theory.md says what each number is.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithms import FedAvg
from kedge.checks import whole
from kedge.client import Loss
from kedge.errors import RunWarning, UsageError
from kedge.keyed import SUBSET, draw_minibatches, keyed
from kedge.problem import Federation
from kedge.round import ASKED
from kedge.settings import Settings
from kedge.simulator import Simulation
from kedge.theory.constants import Constants
from kedge.theory.oracle import Eigenvalue, Oracle, Part, power_iteration

CLIENTS, CURVED, SAMPLES, MINIBATCHES, DESCENT = 100, 20, 4096, 400, 40
"""The most clients whose gradients and whose Hessians are measured, samples of all Hessians, minibatches per point, and
steps of the final descent."""

TRIAL_COHORT, TRIAL_ROUNDS = 20, 10
"""Of the run that leads from point to point."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class At:
    """What was measured at one point of the trajectory."""

    round: int
    """How many rounds of the trial run lead to it; 0 is x^0."""
    loss: float
    gradient_norm2: float
    """|∇f|²."""
    sigma: float
    zeta: float
    L: float
    L_mean: float
    L_sample: float
    hessian_dissimilarity: float
    G: float
    mean_norm2: float
    """mean_i |∇f_i|²."""
    intervals: dict[str, Interval] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Measured:
    """The constants of a problem, and what it cost to measure them."""

    L: float
    """The largest curvature of any client's loss f_i."""
    L_mean: float
    """That of f, the mean of all clients."""
    L_sample: float
    """That of a minibatch's loss; the largest of those that were drawn."""
    sigma: float
    """Root mean square of the noise of a minibatch gradient, over clients and minibatches."""
    zeta: float
    """The root of mean_i |∇f_i - ∇f|²."""
    delta: float
    """f(x^0) less the smallest f that a short descent found."""
    G0: float
    """mean_i |∇f_i(x^0)|²."""
    G: float
    """The largest norm of a client's gradient."""
    hessian_dissimilarity: float
    """The root of the largest eigenvalue of mean_i (∇²f_i - ∇²f)²."""
    intervals: dict[str, Interval]
    """95 % intervals of those that are estimates. Of L and the like: the eigenvalue and its residual. Of delta: its
    largest value is f(x^0), where the loss cannot be negative."""
    points: tuple[At, ...]
    gradients: float
    """What it cost, in minibatch gradients; a Hessian-vector product counts as two."""
    clients: int
    cohort: int | None
    local_steps: int
    batch_size: int | None

    def constants(self) -> Constants:
        """Return them as the theorems take them."""
        return Constants(
            L=self.L, delta=self.delta, sigma=self.sigma, zeta=self.zeta, G=self.G, G0=self.G0, clients=self.clients,
            cohort=self.cohort, local_steps=self.local_steps, L_sample=self.L_sample,
        )  # fmt: skip


def measure(
    model: nn.Module,
    federation: Federation,
    batch_size: int | None = 32,
    seed: int = 0,
    *,
    cohort: int | None = None,
    local_steps: int = 16,
    loss: Loss | None = None,
    weight_decay: float = 0.0,
    weights: Literal["uniform", "size"] = "uniform",
    points: int = 3,
) -> Measured:
    """Measure the constants of the theorems on a problem.

    The points are x^0 and others of a trial run: ten rounds of FedAvg with eta = 1/L, at most 20 clients per round.
    Gradients of clients are exact, on all of their samples. Curvatures come from power iteration with Hessian-vector
    products, on at most 20 clients and 4,096 samples in all. With more than 100 clients, 100 of them are measured.

    Args:
        model: any module; its parameters are x^0.
        federation: the clients' data.
        batch_size: samples per minibatch; None is the client's whole data, and there is no noise.
        seed: of the clients, samples and minibatches that are drawn.
        cohort: S, for the theorems; None is all clients.
        local_steps: K, of the trial run and for the theorems.
        loss: ``loss(output, y)``, a mean over the samples; cross-entropy if None.
        weight_decay: λ; λ|x|²/2 is part of f.
        weights: of the clients in the objective, uniform or size.
        points: points of the trajectory.

    >>> import kedge
    >>> model, federation = kedge.build_model("logistic", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> found = kedge.theory.measure(model, federation, batch_size=16)
    >>> found.L <= found.L_sample
    True
    """
    points = whole("points", points, 1, TRIAL_ROUNDS + 1)
    rules = Settings(
        cohort=cohort, local_steps=local_steps, batch_size=batch_size, weight_decay=weight_decay,
        weights=weights, seed=seed,
    )  # fmt: skip
    loss = loss or cross_entropy
    # Also checks the model, the data, the cohort and the batch size.
    Simulation(model, federation, FedAvg(eta=1.0), rules, loss, threads=1).close()
    measurer = _Measurer(Oracle(model, federation, loss, weight_decay, seed), rules)
    with measurer.oracle.on_one_thread():
        return _measured(measurer, model, federation, loss, points)


def _measured(measurer: "_Measurer", model: nn.Module, federation: Federation, loss: Loss, points: int) -> Measured:
    rules = measurer.rules
    if not math.isfinite(value := measurer.oracle.loss(measurer.oracle.initial, measurer.parts)):
        raise UsageError(f"the loss at the model's initial parameters is {value}, so there is nothing to measure")
    first = measurer.at(0, measurer.oracle.initial)
    found, last = [first], measurer.oracle.initial
    if points > 1:
        trial = replace_cohort(rules, min(len(federation), TRIAL_COHORT))
        with unwarned():
            run = Simulation(model, federation, FedAvg(eta=1 / max(first.L_sample, 1e-12)), trial, loss)
        wanted = {round(TRIAL_ROUNDS * place / (points - 1)) for place in range(1, points)}
        try:
            for number in range(1, TRIAL_ROUNDS + 1):
                run.advance()
                if not bool(run.moment.state.x.isfinite().all()):
                    break
                last = run.moment.state.x
                if number in wanted:
                    found.append(measurer.at(number, last))
        finally:
            run.close()
        measurer.minibatches += run.moment.gradients
    return _summary(measurer, found, last, is_positive=loss is cross_entropy)


@contextmanager
def unwarned() -> Iterator[None]:
    """Do not repeat what was said about the same problem already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        yield


def replace_cohort(rules: Settings, cohort: int) -> Settings:
    """Return the rules with another cohort."""
    return rules.model_copy(update={"cohort": cohort})


class _Measurer:
    """Measures one point after another."""

    def __init__(self, oracle: Oracle, rules: Settings) -> None:
        self.oracle, self.rules = oracle, rules
        self.minibatches = 0.0
        federation, seed = oracle.federation, rules.seed
        count = len(federation)
        self.clients = np.arange(count)
        if count > CLIENTS:
            self.clients = np.sort(keyed(seed, SUBSET, ASKED).choice(count, CLIENTS, replace=False))
        sizes = federation.sizes[self.clients]
        shares = sizes / sizes.sum() if rules.weights == "size" else np.full(len(sizes), 1 / len(sizes))
        own = [federation.indices[int(client)] for client in self.clients]
        self.parts = [Part(rows, float(share)) for rows, share in zip(own, shares, strict=True)]
        self.curved = self.thinned(self.parts[:: -(-len(self.parts) // CURVED)])
        self.start = torch.from_numpy(keyed(seed, SUBSET, ASKED, 1).normal(size=oracle.initial.numel())).to(
            oracle.initial.dtype
        )

    def thinned(self, parts: Sequence[Part]) -> list[Part]:
        """Return parts with equal or the clients' own weights that have so few samples that a Hessian is affordable."""
        most = max(SAMPLES // len(parts), self.rules.batch_size or 1)
        total = sum(part.weight for part in parts)
        thinned = []
        for place, part in enumerate(parts):
            rows = part.rows
            if len(rows) > most:
                chosen = keyed(self.rules.seed, SUBSET, ASKED, 2, place).choice(len(rows), most, replace=False)
                rows = rows[torch.from_numpy(np.sort(chosen))]
            thinned.append(Part(rows, part.weight / total))
        return thinned

    def at(self, number: int, x: Tensor) -> At:
        """Measure everything at a point."""
        weights = x.new_tensor([part.weight for part in self.parts])
        gradients = self.oracle.each(x, self.parts)
        mean = weights @ gradients
        norms = gradients.square().sum(1)
        apart = (gradients - mean).square().sum(1)
        count, everyone = len(self.parts), len(self.oracle.federation)
        # Of a sample of the clients, both estimates are corrected for the finite population.
        bias = 1.0 if count == everyone else count / (count - 1) * (everyone - 1) / everyone
        zeta2, zeta_of = _weighted(weights, apart * bias, everyone)
        mean_norm2, norms_of = _weighted(weights, norms, everyone)
        sigma, sigma_of = self._noise(number, x, gradients, weights)
        mean_curvature, most, apart_curvature = self._curvatures(x)
        sample = self._minibatch_curvature(number, x, most)
        return At(
            number, self.oracle.loss(x, self.parts), float(mean @ mean), sigma, math.sqrt(zeta2), most.value,
            mean_curvature.value, sample.value, math.sqrt(apart_curvature.value), float(norms.max().sqrt()), mean_norm2,
            {
                "sigma": sigma_of, "zeta": _roots(zeta_of), "G0": norms_of, "L": _reach(most),
                "L_mean": _reach(mean_curvature), "L_sample": _reach(sample),
            },
        )  # fmt: skip

    def _curvatures(self, x: Tensor) -> tuple[Eigenvalue, Eigenvalue, Eigenvalue]:
        """Return the curvature of f, the largest of any f_i, and the mean square of how far they differ."""
        weights = [part.weight for part in self.curved]
        own = [self.oracle.hessian(x, [part._replace(weight=1.0)]) for part in self.curved]

        def mean(vector: Tensor) -> Tensor:
            return _sum(weights, [product(vector) for product in own])

        def squared(vector: Tensor) -> Tensor:
            images = [product(vector) for product in own]
            middle = _sum(weights, images)
            # mean_i (H_i - H) w_i = mean_i H_i w_i, because the w_i = (H_i - H) v have mean 0.
            return _sum(weights, [product(image - middle) for product, image in zip(own, images, strict=True)])

        found = power_iteration(mean, self.start)
        most = found
        for product in own:
            one = power_iteration(product, self._near(most), floor=most.value)
            most = one if one.value > most.value else most
        return found, most, power_iteration(squared, self.start, steps=10, tolerance=0.05)

    def _near(self, found: Eigenvalue) -> Tensor:
        near: Tensor = found.vector + 0.3 * self.start / self.start.norm()
        return near

    def _noise(self, number: int, x: Tensor, gradients: Tensor, weights: Tensor) -> tuple[float, Interval]:
        """Root mean square of |∇F(x; ξ) - ∇f_i(x)| over minibatches of every client, and its interval."""
        if self.rules.batch_size is None:
            return 0.0, (0.0, 0.0)
        each = max(2, -(-MINIBATCHES // len(self.parts)))
        squares = torch.stack([
            torch.stack([(self.oracle.gradient(x, [batch]) - gradient).square().sum() for batch in batches])
            for batches, gradient in zip(self._minibatches(number, each), gradients, strict=True)
        ])  # fmt: skip
        mean = float(weights @ squares.mean(1))
        error = 1.96 * math.sqrt(float(weights.square() @ squares.var(1)) / each)
        return math.sqrt(mean), _roots((mean - error, mean + error))

    def _minibatches(self, number: int, count: int) -> Iterator[list[Part]]:
        for client, part in zip(self.clients, self.parts, strict=True):
            samples = len(part.rows)
            size = min(self.rules.batch_size or samples, samples)
            (drawn,) = draw_minibatches(self.rules.seed, number, ASKED, [int(client)], [samples], [count], size)
            yield [Part(part.rows[torch.from_numpy(rows)], 1.0) for rows in drawn]

    def _minibatch_curvature(self, number: int, x: Tensor, most: Eigenvalue) -> Eigenvalue:
        if self.rules.batch_size is None:
            return most
        for batches in self._minibatches(number, max(1, 64 // len(self.parts))):
            for batch in batches:
                one = power_iteration(self.oracle.hessian(x, [batch]), self._near(most), floor=most.value)
                most = one if one.value > most.value else most
        return most


def _summary(measurer: _Measurer, found: Sequence[At], last: Tensor, *, is_positive: bool) -> Measured:
    oracle, rules = measurer.oracle, measurer.rules
    thinned, first = measurer.thinned(measurer.parts), found[0]
    delta = max(
        oracle.loss(oracle.initial, thinned) - _descend(oracle, last, thinned), first.loss - found[-1].loss, 1e-12
    )
    names = ("L", "L_mean", "L_sample", "sigma", "zeta")
    tops = {name: max(found, key=lambda at: float(getattr(at, name))) for name in names}
    intervals = {name: top.intervals[name] for name, top in tops.items()}
    intervals |= {"G0": first.intervals["G0"], "delta": (delta, max(delta, first.loss) if is_positive else math.inf)}
    size = rules.batch_size or float(oracle.federation.sizes.mean())
    return Measured(
        **{name: getattr(top, name) for name, top in tops.items()}, delta=delta, G0=first.mean_norm2,
        G=max(at.G for at in found), hessian_dissimilarity=max(at.hessian_dissimilarity for at in found),
        intervals=intervals, points=tuple(found), gradients=measurer.minibatches + oracle.samples / size,
        clients=len(oracle.federation), cohort=rules.cohort, local_steps=rules.local_steps,
        batch_size=rules.batch_size,
    )  # fmt: skip


def _descend(oracle: Oracle, x: Tensor, parts: Sequence[Part]) -> float:
    """Return the smallest f that a short descent finds from here."""
    point = x.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([point], max_iter=DESCENT, max_eval=2 * DESCENT, line_search_fn="strong_wolfe")

    def closure() -> float:
        point.grad = oracle.gradient(point.detach().clone(), parts)
        return oracle.loss(point.detach(), parts)

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    found = oracle.loss(point.detach(), parts)
    return found if math.isfinite(found) else math.inf


def _sum(weights: Sequence[float], vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([weight * vector for weight, vector in zip(weights, vectors, strict=True)]).sum(0)


def _weighted(weights: Tensor, values: Tensor, everyone: int) -> tuple[float, Interval]:
    """The mean over the measured clients; its interval is a point where these are all."""
    mean, count = float(weights @ values), len(values)
    if count == everyone:
        return mean, (mean, mean)
    error = 1.96 * float(values.std()) * math.sqrt((1 - count / everyone) / count)
    return mean, (max(mean - error, 0.0), mean + error)


def _roots(of: Interval) -> Interval:
    return math.sqrt(max(of[0], 0.0)), math.sqrt(max(of[1], 0.0))


def _reach(found: Eigenvalue) -> Interval:
    return found.value, found.value + found.residual
