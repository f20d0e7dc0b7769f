"""Experiments on rates: speed-up, client sampling, exponents in the rounds, and whether the bounds hold."""

import math

from kedge.algorithms import FedAvgM, Scaffold, ScaffoldM
from kedge.theory.laboratory.finding import Budget, Finding, Panel, PlottedLine, fitted
from kedge.theory.laboratory.playing import play
from kedge.theory.laboratory.worlds import World, quadratic, robust
from kedge.theory.theorems import settings

POWERS = {"FedAvg-M": -1 / 2, "FedAvg-M-VR": -2 / 3}


def speed_up(scale: Budget) -> Finding:
    """(3) Where noise dominates, the floor falls as 1/(NK)."""
    clients = [2, 4, 8, 16, 32] if scale.dense else [2, 8, 32]
    steps = [1, 2, 4, 8, 16] if scale.dense else [1, 4, 16]
    rounds, replicas = scale.rounds(800), 2 * scale.replicas
    by_clients, by_steps = [], []
    for count in clients:
        world = quadratic(count, zeta=0.0, sigma=10.0, alike=True, low=0.3)
        by_clients.append(
            play(FedAvgM(eta=0.001, beta=0.2, gamma=0.3), world, rounds, steps=4, replicas=replicas).end(0.8)
        )
    for count in steps:
        world = quadratic(4, zeta=0.0, sigma=10.0, alike=True, low=0.3)
        by_steps.append(
            play(FedAvgM(eta=0.001, beta=0.2, gamma=0.3), world, rounds, steps=count, replicas=replicas).end(0.8)
        )
    over_clients, over_steps = fitted(clients, by_clients), fitted(steps, by_steps)
    good = abs(over_clients.slope + 1) < 0.15 and abs(over_steps.slope + 1) < 0.15
    return Finding(
        "speed-up",
        "Linear speed-up: where noise dominates, the error falls as 1/N and as 1/K.",
        holds=good,
        as_stated=good,
        sentences=(f"Fitted exponents of |∇f|²: {over_clients} in N and {over_steps} in K; the theory says -1.",),
        panels=(
            Panel(
                "σ = 10, K = 4",
                "N",
                "|∇f|²",
                (
                    PlottedLine("FedAvg-M", clients, by_clients),
                    PlottedLine("1/N", clients, [by_clients[0] * clients[0] / n for n in clients], dashed=True),
                ),
            ),
            Panel(
                "σ = 10, N = 4",
                "K",
                "|∇f|²",
                (
                    PlottedLine("FedAvg-M", steps, by_steps),
                    PlottedLine("1/K", steps, [by_steps[0] / k for k in steps], dashed=True),
                ),
            ),
        ),
        numbers={"clients": over_clients.slope, "steps": over_steps.slope},
    )


def participation(scale: Budget) -> Finding:
    """(4) SCAFFOLD-M against SCAFFOLD as S/N falls, without noise."""
    clients, target = 64, 1e-6
    cohorts = [64, 16, 4, 1] if scale.dense else [64, 8, 1]
    gammas = [0.01, 0.03, 0.1, 0.3, 1.0, 2.0] if scale.dense else [0.03, 0.1, 0.3, 1.0]
    betas = [0.1, 0.3, 0.7] if scale.dense else [0.5]
    rounds, replicas = (6000 if scale.dense else 2500), min(scale.replicas, 3)
    world = quadratic(clients, zeta=3.0, low=0.3)
    needed: dict[str, list[float]] = {"SCAFFOLD": [], "SCAFFOLD-M": []}
    for cohort in cohorts:
        given = {"steps": 2, "cohort": cohort, "replicas": replicas}
        found: dict[str, list[float]] = {"SCAFFOLD": [], "SCAFFOLD-M": []}
        for gamma in gammas:
            tries = [("SCAFFOLD", Scaffold(eta=0.001, gamma=gamma))]
            tries += [("SCAFFOLD-M", ScaffoldM(eta=0.001, beta=b, gamma=gamma)) for b in betas]  # type: ignore[misc]
            for name, algorithm in tries:
                most = int(min([rounds, *(2 * one for one in found[name] if math.isfinite(one))]))
                found[name].append(play(algorithm, world, max(most, 50), **given).rounds_to(target))  # type: ignore[arg-type]
        for name in needed:
            needed[name].append(min(found[name]))
    predicted = [(clients / s) ** (2 / 3) / (1 + clients ** (2 / 3) / s) for s in cohorts]
    measured = [a / b for a, b in zip(needed["SCAFFOLD"], needed["SCAFFOLD-M"], strict=True)]
    reached = all(math.isfinite(value) for values in needed.values() for value in values)
    better = [ratio > 1.2 for ratio in measured[1:]]
    return Finding(
        "participation",
        "Without noise SCAFFOLD-M needs fewer rounds than SCAFFOLD when few clients take part: 1 + N^⅔/S against "
        "(N/S)^⅔.",
        holds=reached and measured[-1] > 0.7,
        as_stated=any(better),
        sentences=(
            f"Rounds to |∇f|² = {target:g} with N = {clients}, each at its best gamma and beta of a grid: "
            + "; ".join(
                f"S = {s}: SCAFFOLD {a:g}, SCAFFOLD-M {b:g} (ratio {m:.2f}, the bounds' ratio {p:.2f})"
                for s, a, b, m, p in zip(
                    cohorts, needed["SCAFFOLD"], needed["SCAFFOLD-M"], measured, predicted, strict=True
                )
            )
            + ".",
            "The bounds are upper bounds, and these are quadratics, on which both converge linearly: "
            + (
                "SCAFFOLD-M is faster at some cohorts."
                if any(better)
                else "the predicted advantage of SCAFFOLD-M does not show."
            ),
        ),
        panels=(
            Panel(
                f"no noise, N = {clients}",
                "S",
                f"rounds to {target:g}",
                tuple(PlottedLine(n, cohorts, v) for n, v in needed.items()),
            ),
            Panel(
                "SCAFFOLD's rounds over SCAFFOLD-M's",
                "S",
                "ratio",
                (
                    PlottedLine("measured", cohorts, measured),
                    PlottedLine("ratio of the bounds", cohorts, predicted, dashed=True),
                ),
            ),
        ),
        numbers={f"ratio_{s}": m for s, m in zip(cohorts, measured, strict=True)},
    )


def exponents(scale: Budget) -> Finding:
    """(5) R^-2/3 with variance reduction, R^-1/2 without."""
    lengths = [500, 1500, 4500, 13500, 40500] if scale.dense else [500, 1500, 4500]
    world = quadratic(4, zeta=1.0, sigma=3.0, low=0.3)
    constants = world.constants(None, 4)
    means: dict[str, list[float]] = {}
    bounds: dict[str, list[float]] = {}
    for name, label in (("fedavg-m", "FedAvg-M"), ("fedavg-m-vr", "FedAvg-M-VR")):
        for rounds in lengths:
            chosen = settings(name, constants, rounds)
            made = chosen.make()
            means.setdefault(label, []).append(play(made, world, rounds, steps=4, replicas=scale.replicas).mean())
            bounds.setdefault(label, []).append(chosen.bound)
    fits = {label: fitted(lengths, values) for label, values in means.items()}
    theory = {label: fitted(lengths, values) for label, values in bounds.items()}
    steeper = fits["FedAvg-M-VR"].slope < fits["FedAvg-M"].slope
    below = all(m <= b for label in means for m, b in zip(means[label], bounds[label], strict=True))
    return Finding(
        "exponents",
        "With variance reduction the error falls as R^-2/3, without as R^-1/2.",
        holds=below and steeper,
        as_stated=all(abs(fits[label].slope - power) < 0.12 for label, power in POWERS.items()),
        sentences=(
            "Fitted exponents of the mean |∇f|² of every replica in R, with the theorems' settings for every R: "
            + ", ".join(f"{label} {fit} (its bound: {theory[label].slope:.2f})" for label, fit in fits.items())
            + ".",
            "The bounds are for the worst smooth function; here the exponents come from how far the settings' steps "
            "lead in R rounds: γR grows as R^½ without and as R^⅔ with variance reduction, because its noise allows a "
            "longer step.",
        ),
        panels=(
            Panel(
                "σ = 3, N = 4, K = 4",
                "R",
                "mean |∇f|²",
                (
                    *(PlottedLine(label, lengths, values) for label, values in means.items()),
                    *(PlottedLine(f"{label}: bound", lengths, values, dashed=True) for label, values in bounds.items()),
                ),
            ),
        ),
        numbers={label: fit.slope for label, fit in fits.items()},
    )


def every_bound(scale: Budget) -> Finding:
    """(6) Every explicit bound holds on every trajectory."""
    rounds = scale.rounds(400)
    worlds: list[tuple[str, World]] = [
        ("quadratics without noise", quadratic(zeta=10.0)),
        ("quadratics with noise", quadratic(zeta=10.0, sigma=3.0)),
        ("robust regression without noise", robust()),
        ("robust regression with noise", robust(sigma=1.0)),
    ]
    shares: dict[str, list[float]] = {}
    for _, world in worlds:
        for name in ("fedavg-m", "fedavg-m-vr", "scaffold-m", "scaffold-m-vr"):
            for cohort in (None,) if name.startswith("fedavg") else (None, 2):
                chosen = settings(name, world.constants(cohort, 5), rounds, alternative=name.endswith("vr"))
                done = play(chosen.make(), world, rounds, steps=5, cohort=cohort, replicas=scale.replicas)
                label = name if cohort is None else f"{name}, 2 of 10"
                shares.setdefault(label, []).append(done.worst() / chosen.bound)
    worst = max(share for values in shares.values() for share in values)
    numbers = list(range(1, len(worlds) + 1))
    return Finding(
        "every-bound",
        "The explicit bounds of the four theorems hold.",
        holds=worst <= 1,
        as_stated=worst <= 1,
        sentences=(
            f"On {len(worlds)} problems ({', '.join(title for title, _ in worlds)}), with the theorems' settings, the "
            f"mean |∇f|² of every replica is at most {100 * worst:.2g} % of its bound.",
        ),
        panels=(
            Panel(
                "problems 1 to 4",
                "problem",
                "mean |∇f|² / bound",
                tuple(PlottedLine(n, numbers, v) for n, v in shares.items()),
            ),
        ),
        numbers={"worst": worst},
    )
