"""Experiments on drift and steps: heterogeneity, fixed points, constant local rates, and the step or the momentum."""

import math

from kedge.algorithms import FedAvg, FedAvgM, FedAvgMVR
from kedge.theory.laboratory.finding import Budget, Finding, Panel, PlottedLine
from kedge.theory.laboratory.playing import play
from kedge.theory.laboratory.worlds import quadratic
from kedge.theory.theorems import settings

K = 10


def heterogeneity(scale: Budget) -> Finding:
    """(1) FedAvg's floor grows with ζ, FedAvg-M's with the theorem's settings does not."""
    zetas = [1.0, 10.0, 100.0, 1e3, 1e4]
    rounds = scale.rounds(1500)
    plain, momentum, bounds, shared = [], [], [], []
    for zeta in zetas:
        world = quadratic(zeta=zeta)
        chosen = settings("fedavg-m", world.constants(None, K), rounds, c=0.2)
        plain.append(play(FedAvg(eta=0.01), world, rounds, replicas=1).end())
        momentum.append(play(chosen.make(), world, rounds, replicas=1).mean())
        shared.append(play(FedAvg(eta=chosen.eta, gamma=chosen.gamma), world, rounds, replicas=1).mean())
        bounds.append(chosen.bound)
    grows = plain[-1] / plain[1]
    flat = max(momentum) / min(momentum)
    flat_shared = max(shared) / min(shared)
    return Finding(
        "heterogeneity",
        "FedAvg's error grows with the heterogeneity ζ; FedAvg-M's, with the theorem's settings, does not.",
        holds=grows > 1e5 and flat < 1.5 and all(m <= b for m, b in zip(momentum, bounds, strict=True)),
        as_stated=flat < 1.5,
        sentences=(
            f"From ζ = 10 to 10⁴ the floor of FedAvg (eta 0.01) grows {grows:.2g} times, as ζ².",
            "From ζ = 1 to 10⁴ the mean |∇f|² of FedAvg-M with the theorem's settings changes by a factor of "
            f"{flat:.3g}, and stays below its bound.",
            f"But FedAvg with the same two rates is as flat (a factor of {flat_shared:.3g}): the theorem makes eta "
            "fall as 1/ζ, and that, not the momentum, is what removes ζ on these problems.",
        ),
        panels=(
            Panel(
                "no noise, all clients",
                "ζ",
                "|∇f|²",
                (
                    PlottedLine("FedAvg, eta 0.01: floor", zetas, plain),
                    PlottedLine("FedAvg-M, theorem: mean", zetas, momentum),
                    PlottedLine("FedAvg, the same rates: mean", zetas, shared),
                    PlottedLine("the theorem's bound", zetas, bounds, dashed=True),
                ),
            ),
        ),
        numbers={"fedavg_growth": grows, "fedavg_m_change": flat, "same_rates_change": flat_shared},
    )


def fixed_point(scale: Budget) -> Finding:
    """(2) FedAvg-M(η, β) ends where FedAvg(βη) ends."""
    betas = [1.0, 0.3, 0.1, 0.03] if scale.dense else [1.0, 0.1]
    world, apart, floors, others = quadratic(zeta=10.0, low=0.3), [], [], []
    for beta in betas:
        rounds = round(max(600, 90 / beta))  # momentum forgets in 1/beta rounds
        one = play(FedAvgM(eta=0.05, beta=beta, gamma=0.5), world, rounds, replicas=1)
        other = play(FedAvg(eta=0.05 * beta, gamma=0.5), world, rounds, replicas=1)
        apart.append(float((one.server.x - other.server.x).norm() / other.server.x.norm()))
        floors.append(one.end())
        others.append(other.end())
    return Finding(
        "fixed-point",
        "FedAvg-M(η, β) has the fixed points of FedAvg(βη).",
        holds=max(apart) < 1e-6,
        as_stated=True,
        sentences=(
            f"At their limit without noise the two are at the same point to {max(apart):.1g} of its distance from the "
            f"optimum, for beta from {betas[-1]:g} to 1.",
        ),
        panels=(
            Panel(
                "no noise, all clients",
                "β",
                "|∇f|² at the limit",
                (
                    PlottedLine("FedAvg-M, eta 0.05", betas, floors),
                    PlottedLine("FedAvg, eta 0.05 β", betas, others, dashed=True),
                ),
            ),
        ),
        numbers={"apart": max(apart)},
    )


def constant_rate(scale: Budget) -> Finding:
    """(7) A constant local step works for FedAvg-M, not for its extension with variance reduction."""
    betas = [1.0, 0.3, 0.1, 0.03] if scale.dense else [1.0, 0.3, 0.1]
    world = quadratic(zeta=10.0, low=0.3)
    floors: dict[str, list[float]] = {}
    drifts: dict[str, list[float]] = {}
    for name, kind in (("FedAvg-M", FedAvgM), ("FedAvg-M-VR", FedAvgMVR)):
        for beta in betas:
            # The smaller beta, the slower the approach of the variant with variance reduction.
            rounds = round(400 / math.sqrt(beta)) if kind is FedAvgM else round(250 / beta)
            done = play(kind(eta=0.05, beta=beta, gamma=0.5), world, rounds, replicas=1)
            floors.setdefault(name, []).append(done.end(0.05))
            drifts.setdefault(name, []).append(float(done.drifts[-1].mean()))
    falls = floors["FedAvg-M"][0] / floors["FedAvg-M"][-1]
    stays = floors["FedAvg-M-VR"][0] / floors["FedAvg-M-VR"][-1]
    return Finding(
        "constant-rate",
        "Constant local learning rates: for FedAvg-M and, as printed, for its extension with variance reduction.",
        holds=falls > 0.3 * betas[-1] ** -2 and 0.5 < stays < 2,
        as_stated=False,
        sentences=(
            f"At a constant eta, from beta = 1 to {betas[-1]:g}, the floor of FedAvg-M falls {falls:.3g} times, as "
            f"β². That of FedAvg-M-VR stays (a factor of {stays:.2g}): only a smaller eta lowers it, so the printed "
            "claim does not hold for it (erratum E6).",
            f"It is not the drift: at beta = {betas[-1]:g} a client of FedAvg-M ends a round "
            f"{drifts['FedAvg-M'][-1]:.2g} (squared) from the server's model, one of FedAvg-M-VR "
            f"{drifts['FedAvg-M-VR'][-1]:.2g}, both far less than the {drifts['FedAvg-M'][0]:.2g} at beta = 1. But "
            "what the drift adds to a local gradient has the weight beta in FedAvg-M and the weight 1 in FedAvg-M-VR, "
            "while the gradient at the server's model has the weight beta in both: so their ratio, which is the bias, "
            "falls with beta only in FedAvg-M.",
        ),
        panels=(
            Panel(
                "no noise, eta 0.05",
                "β",
                "|∇f|² at the limit",
                tuple(PlottedLine(n, betas, f) for n, f in floors.items()),
            ),
            Panel(
                "no noise, eta 0.05",
                "β",
                "mean squared drift of a client",
                tuple(PlottedLine(n, betas, f) for n, f in drifts.items()),
            ),
        ),
        numbers={"falls": falls, "stays": stays},
    )


LONG, BEYOND = 3.0, 10.0
"""Server rates, times 1/L: a long step, and one at which FedAvg diverges."""
BETA = 0.2


def step_or_momentum(scale: Budget) -> Finding:
    """(8) FedAvg with two rates at the same effective step, against FedAvg-M."""
    zetas = (0.0, 1.0, 10.0, 100.0) if scale.dense else (0.0, 10.0)
    sigmas = (0.0, 0.1, 1.0, 10.0) if scale.dense else (0.0, 1.0)
    gammas = (0.1, 0.3, 1.0, LONG, BEYOND) if scale.dense else (0.3, 1.0, LONG, BEYOND)
    cases = [(cohort, steps) for cohort in (None, 2) for steps in ((2, 10) if scale.dense else (10,))]
    panels: list[Panel] = []
    tuned: list[float] = []
    long: list[float] = []
    stable: list[bool] = []
    for cohort, steps in cases:
        cells = {(z, s): _cell(scale, z, s, gammas, cohort, steps) for z in zetas for s in sigmas}
        who = f"{'all clients' if cohort is None else f'{cohort} of 10'}, K = {steps}"
        for title, ratios in (
            (f"each at its best γ: {who}", {place: _best(p) / _best(m) for place, (p, m) in cells.items()}),
            (f"both at γ = {LONG:g}/L: {who}", {place: _at(p, LONG) / _at(m, LONG) for place, (p, m) in cells.items()}),
        ):
            (tuned if "best" in title else long).extend(ratios.values())
            lines = tuple(tuple(math.log10(ratios[z, s]) for s in sigmas) for z in zetas)
            panels.append(Panel(title, "σ", "ζ", map=lines, columns=sigmas, rows=zetas))
        stable += [m[BEYOND] < 1e6 and not p[BEYOND] < 1e4 * m[BEYOND] for p, m in cells.values()]
    panels.append(_predicted(scale))
    measured, theory = panels[-1].series[0].y, panels[-1].series[1].y
    helped, kept = sum(ratio > 1.5 for ratio in long), sum(stable) / len(stable)
    off = max(abs(math.log(a / b)) for a, b in zip(measured, theory, strict=True))
    return Finding(
        "step-or-momentum",
        "Momentum helps beyond the longer step that it allows.",
        holds=max(tuned) < 3 and off < 0.35 and kept > 0.3,
        as_stated=False,
        sentences=(
            "FedAvg with two rates (local βη, server γ) takes the same effective steps as FedAvg-M (local η, momentum "
            "β, server γ). The maps show log10 of FedAvg's final |∇f|² over that of FedAvg-M: above 0, momentum helps "
            "beyond the step.",
            f"Each at its best γ of {', '.join(f'{g:g}' for g in gammas)} times 1/L, FedAvg's error is at most "
            f"{max(tuned):.2g} times that of FedAvg-M (median {sorted(tuned)[len(tuned) // 2]:.2g}): with a tuned "
            "step there is little left for momentum.",
            f"Both at the long step γ = {LONG:g}/L, momentum is better by more than half in {helped} of {len(long)} "
            "cells, those with noise or with few clients per round.",
            f"At γ = {BEYOND:g}/L FedAvg has diverged or is ten thousand times worse in {100 * kept:.0f} % of the "
            "cells, while FedAvg-M is stable in them.",
            "The theory of linear systems predicts it: the floor of noise is λγ/(2 - λγ) per curvature λ for FedAvg, "
            "and λγ/(2 - λγβ/(2-β)) for FedAvg-M. They are the same for short steps and differ where FedAvg comes "
            f"near its limit λγ = 2. Measured and predicted ratios agree to {100 * (math.exp(off) - 1):.0f} %.",
        ),
        panels=tuple(panels),
        numbers={"tuned": max(tuned), "stable": kept, "off": off},
    )


Ends = dict[float, float]


def _cell(
    scale: Budget, zeta: float, sigma: float, gammas: tuple[float, ...], cohort: int | None, steps: int
) -> tuple[Ends, Ends]:
    """Return the final |∇f|² of FedAvg and of FedAvg-M for every server rate."""
    world = quadratic(zeta=zeta, sigma=sigma, low=0.02)
    plain: Ends = {}
    momentum: Ends = {}
    for gamma in gammas:
        eta, rounds = gamma / steps, max(150, scale.rounds(200))
        one = FedAvg(eta=BETA * eta, gamma=gamma)
        other = FedAvgM(eta=eta, beta=BETA, gamma=gamma)
        for found, algorithm in ((plain, one), (momentum, other)):
            done = play(algorithm, world, rounds, steps=steps, cohort=cohort, replicas=scale.replicas)
            found[gamma] = done.end()
    return plain, momentum


def _predicted(scale: Budget) -> Panel:
    """The ratio of the floors of noise against the server rate, for clients of one curvature."""
    gammas = [0.5, 1.0, 1.5, 1.8] if scale.dense else [0.5, 1.5]
    world = quadratic(zeta=0.0, sigma=1.0, alike=True, low=1.0)
    ratios = []
    for gamma in gammas:
        given = {"steps": 4, "replicas": 4 * scale.replicas}
        one, other = FedAvg(eta=0.001, gamma=gamma), FedAvgM(eta=0.005, beta=BETA, gamma=gamma)
        ends = [play(each, world, scale.rounds(600), **given).end(0.8) for each in (one, other)]  # type: ignore[arg-type]
        ratios.append(ends[0] / ends[1])
    theory = [(2 - gamma * BETA / (2 - BETA)) / (2 - gamma) for gamma in gammas]
    lines = (PlottedLine("measured", gammas, ratios), PlottedLine("predicted", gammas, theory, dashed=True))
    return Panel("noise only, curvature 1", "γ", "FedAvg's floor over FedAvg-M's", lines)


def _at(found: Ends, gamma: float) -> float:
    return max(found[gamma], 1e-12)  # below that, both are at the optimum


def _best(found: Ends) -> float:
    return min((_at(found, gamma) for gamma in found if math.isfinite(found[gamma])), default=math.inf)
