"""What an experiment will take: work counted exactly, time guessed from it.

The gradients of a round come from running the algorithm's own rules (`kedge.cost`), and the work of a gradient from the
model's layers. Only the speed is a guess: that of one core of a small machine, on the slow side.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from kedge.algorithm import Algorithm
from kedge.costs import Cost, cost
from kedge.problem import DATASETS, build_model
from kedge.reproduce.experiment import SCALES, load, names
from kedge.reproduce.plan import Hyper, Plan
from kedge.runs.config import Config, algorithm_of, eval_every, model_name
from kedge.runs.own import entry_of, places

# For one core: floating-point operations per second in products and in convolutions of 8 channels (wider ones are
# faster), and the additional seconds that a step and a run take.
PRODUCTS, CONVOLUTIONS, STEP, SETUP = 70e9, 25e9, 5e-5, 0.1


@dataclass(frozen=True)
class Workload:
    """The runs of an experiment and the seconds they take on one core."""

    runs: int
    seconds: float

    def __add__(self, other: "Workload") -> "Workload":
        return Workload(self.runs + other.runs, self.seconds + other.seconds)

    def on(self, cores: int) -> str:
        """Format the time it takes on this many cores."""
        seconds = self.seconds / cores
        for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
            if seconds >= 2 * size:
                return f"{seconds / size:.0f} {unit}"
        return f"{max(1, seconds):.0f} s"


def estimate(plan: Plan) -> Workload:
    """Estimate an experiment at a scale; the runs of a case differ in hyper-parameters and seeds, not in their cost."""
    total = Workload(0, 0.0)
    for case, grid in plan.grids().items():
        axes = sum(len({getattr(point, axis) for point in grid}) > 1 for axis in Hyper._fields)
        halving = 2 * axes if "finer" in plan.protocols else 0
        count = (max(len(grid), plan.size.tuning.budget) + halving) * plan.size.tuning.seeds
        total += Workload(count, count * run_seconds(plan.search(case, grid[0], 0)))
    for case in plan.cases():
        count = len(plan.seeds)
        total += Workload(count, count * run_seconds(plan.final(case, plan.grid(case)[0], 0)))
    return total


def cost_table() -> list[list[str]]:
    """Return one row per figure and one for their sum: name, name in the paper, what it shows, and costs."""
    rows, total = [], dict.fromkeys(SCALES, Workload(0, 0.0))
    for name in names():
        experiment = load(name)
        costs = {scale: estimate(Plan(experiment, scale)) for scale in SCALES if scale in experiment.scales}
        total |= {scale: total[scale] + cost for scale, cost in costs.items()}
        shown = [costs[scale].on(2) if scale in costs else "-" for scale in SCALES]
        rows.append([name, experiment.figure, experiment.shows, *shown])
    return [*rows, ["all", "", "", *(total[scale].on(2) for scale in SCALES)]]


def run_seconds(config: Config) -> float:
    """Return the seconds of one run on one core; not a number for data or models that are known only when they run."""
    data, run = config.data, config.run
    entry = entry_of(data.dataset)
    train, test = entry.train, entry.test
    if train is None or test is None or entry.classes is None or places(model_name(config)):
        return math.nan
    per_sample, speed = _work(model_name(config), data.dataset, tuple(config.model.widths or ()), config.model.width)
    batch = run.batch_size if isinstance(run.batch_size, int) else train // data.clients
    cohort = run.cohort or data.clients
    costs = _cost(algorithm_of(config), run.local_steps)
    full = math.ceil(train / data.clients / batch)  # minibatches of a pass
    gradients = sum(
        (1 if exchange.cohort == "first" else cohort) * (exchange.gradients + full * exchange.full_passes)
        for exchange in costs.round
    )
    step = STEP + 3 * per_sample * batch / speed
    tested = data.test_samples or (round(data.holdout * train) or test)
    evaluations = math.ceil(run.rounds / eval_every(config))
    return SETUP + run.rounds * gradients * step + evaluations * tested * per_sample / (speed / 2)


@lru_cache
def _cost(algorithm: Algorithm[Any, Any], local_steps: int) -> Cost:
    return cost(algorithm, 1000, local_steps)


@lru_cache
def _work(model: str, dataset: str, widths: tuple[int, ...], width: int | None) -> tuple[float, float]:
    """Return the operations of a forward pass per sample, and how many a core does in a second."""
    options: dict[str, Any] = ({"widths": widths} if widths else {}) | ({"width": width} if width else {})
    shape, classes = DATASETS[dataset].shape, DATASETS[dataset].classes
    assert shape is not None, "its size is known"
    assert classes is not None, "run_seconds has asked for it"
    module = build_model(model, shape, classes, **options).to("meta").eval()
    work = 0.0

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal work
        weight = cast("Tensor", layer.weight)  # every output takes a product with one row of it
        work += 2 * output.numel() * weight[0].numel()

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        layer.register_forward_hook(count)
    module(torch.empty((1, *shape), device="meta"))
    first = layers[0]
    speed = CONVOLUTIONS * (first.out_channels / 8) ** (2 / 3) if isinstance(first, nn.Conv2d) else PRODUCTS
    return work, speed
