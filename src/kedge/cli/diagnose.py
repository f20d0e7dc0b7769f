"""`kedge diagnose`: what the theory says about a problem, in plain words."""

import math
import shlex
from pathlib import Path
from typing import Any

from rich.table import Table

from kedge.algorithm import Algorithm
from kedge.algorithms import ALGORITHMS
from kedge.cli import consent, options
from kedge.cli.console import errors, output
from kedge.runs.config import Config, Problem, check, division, problem_of
from kedge.schedules import at
from kedge.settings import Settings
from kedge.theory import Advice, Constants, Measured, Trial, advise, measure, try_rates
from kedge.theory import settings as of_theorem
from kedge.theory.theorems import has_alternative

MEANINGS = {
    "L": "L, the largest curvature of a client's loss",
    "L_mean": "L of f, the mean of all clients",
    "L_sample": "L of a minibatch's loss",
    "sigma": "σ, the noise of a minibatch gradient",
    "zeta": "ζ, how far the clients' gradients differ",
    "hessian_dissimilarity": "δ, how far their curvatures differ",
    "delta": "Δ, f at the start less its smallest value",
    "G0": "G_0, mean squared gradient of a client at the start",
}
TRIAL_ROUNDS = 15


def diagnose(
    config: Path | None, settings_: list[str] | None, given: options.Given, *, trial: bool, trust: bool
) -> None:
    """Measure a problem, and say what to do."""
    settings = check(consent.configuration(config, settings_, given, trust=trust))
    problem = problem_of(settings)
    rules = settings.run.part(Settings)
    output.print(f"{_title(settings)}: {problem.federation}", soft_wrap=True)
    errors.print("Measuring ...")
    measured = measured_of(settings, problem)
    advice = advise(measured, settings.run.rounds)
    tried = None
    if trial:
        errors.print("Trying learning rates ...")
        rounds = min(TRIAL_ROUNDS, settings.run.rounds)
        tried = try_rates(problem.model, problem.federation, advice.make(), rules, rounds, problem.loss)
        advice.settings[advice.algorithm]["eta"] = tried.eta
    _print(measured, advice, tried, settings)
    given_again = [str(config)] if config is not None else []
    given_again += [part for key, value in given.items() for part in (_option(key), str(value))]
    given_again += [part for text in settings_ or [] for part in ("--set", text)]
    output.print(f"\nCompare them on your problem:\n{command(advice, given_again)}", soft_wrap=True)


def measured_of(settings: Config, problem: Problem) -> Measured:
    """Measure the constants of a configuration's problem."""
    run = settings.run
    return measure(
        problem.model, problem.federation, run.batch_size, run.seed, cohort=run.cohort, local_steps=run.local_steps,
        loss=problem.loss, weight_decay=float(at(run.weight_decay, 0)), weights=run.weights,
    )  # fmt: skip


def command(advice: Advice, given: list[str]) -> str:
    """Return the comparison that the advice asks for."""
    names = ",".join(id_of(kind) for kind in advice.settings)
    sets = [
        part
        for kind, values in advice.settings.items()
        for name, value in values.items()
        for part in ("--set", f"{id_of(kind)}.{name}={value:g}")
    ]
    return shlex.join(["kedge", "compare", *given, "--algorithms", names, *sets])


def id_of(kind: type[Algorithm[Any, Any]]) -> str:
    """Return the id of an algorithm."""
    return next(name for name, known in ALGORITHMS.items() if known is kind)


def _option(key: str) -> str:
    return f"--{options.option_name(key).replace('_', '-')}"


def _title(settings: Config) -> str:
    data, run = settings.data, settings.run
    batch = "exact gradients" if run.batch_size is None else f"minibatches of {run.batch_size}"
    return f"{data.dataset}, {division(settings)}, {run.cohort or 'all'} per round, K = {run.local_steps}, {batch}"


def _print(measured: Measured, advice: Advice, tried: Trial | None, settings: Config) -> None:
    table = Table(box=None, pad_edge=False)
    for name, justify in (("constant", "left"), ("value", "right"), ("at least", "right"), ("at most", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name, meaning in MEANINGS.items():
        value = getattr(measured, name)
        low, high = measured.intervals.get(name, (math.nan, math.nan))
        table.add_row(meaning, f"{value:.3g}", *("" if math.isnan(end) else f"{end:.3g}" for end in (low, high)))
    output.print(table)
    said = ", ".join(f"{name} {value:.2g}" for name, value in advice.errors.items())
    output.print(
        f"\nSquared errors of one round of FedAvg: {said}. The squared gradient is {advice.signal:.2g}.", soft_wrap=True
    )
    for reason in advice.reasons:
        output.print(reason, soft_wrap=True)
    chosen = id_of(advice.algorithm)
    values = ", ".join(f"{name} {value:g}" for name, value in advice.settings[advice.algorithm].items())
    output.print(f"Start with {chosen}: {values}.", soft_wrap=True)
    if tried is not None:
        losses = ", ".join(f"{loss:.3g} with eta {eta:g}" for eta, loss in tried.losses.items())
        output.print(f"After {tried.rounds} rounds of {chosen}, f was {losses}.", soft_wrap=True)
    cost = measured.gradients + (tried.gradients if tried else 0.0)
    per_round = (settings.run.cohort or measured.clients) * settings.run.local_steps
    output.print(
        f"This took {cost:,.0f} minibatch gradients, as many as {cost / per_round:,.0f} rounds of FedAvg.",
        soft_wrap=True,
    )


def theory_settings(settings: Config, problem: Problem) -> dict[str, Any]:
    """Return the hyper-parameters that a theorem gives for the measured constants of a problem, and say them."""
    name, rounds = settings.algorithm.name, settings.run.rounds
    # Refuses at once what no constants could mend.
    of_theorem(name, Constants(L=1, delta=1, G0=1, clients=settings.data.clients, cohort=settings.run.cohort), rounds)
    measured = measured_of(settings, problem)
    found = of_theorem(name, measured, rounds)
    most = settings.run.local_steps * rounds
    if found.opening_batches is not None and found.opening_batches > most and has_alternative(name):
        found = of_theorem(name, measured, rounds, alternative=True)
    hyper = found.hyper()
    said = ", ".join(f"{key} {value:.3g}" for key, value in hyper.items())
    output.print(
        f"The theorem of {name} with measured constants (L {measured.L:.3g}, σ {measured.sigma:.3g}, Δ "
        f"{measured.delta:.3g}; {measured.gradients:,.0f} minibatch gradients): {said}. "
        f"It bounds the mean of E|∇f|² by {found.bound:.3g}.",
        soft_wrap=True,
    )
    return hyper
