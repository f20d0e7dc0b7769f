"""A measure, a history and a run to make others from."""

from pathlib import Path

from kedge.reproduce.plan import FinalRun
from kedge.reproduce.results import Measure
from kedge.runs.reader import StoredRun

ROW = Measure(
    panel="P", protocol="tuned", line="a", seed=0, eta=0.1, beta=None, step=None, accuracy=0.5, loss=1.0, area=0.4,
    best=0.6, target=0.4, rounds_to=5.0, gradients_to=50.0, megabytes_to=0.5, at_gradients=0.5, at_bytes=0.5,
    step_norm=0.1, rounds=10, gradients=100.0, megabytes=1.0, model="0123456789abcdef", diverged=None,
)  # fmt: skip


def history(*accuracies, gradients=10, bytes_=1e6):
    """Return a row per round."""
    return [
        {
            "round": r, "test_accuracy": a, "test_loss": 1 - a, "gradients": gradients * r, "bytes_down": bytes_ * r,
            "bytes_up": 0.0, "step_norm": 0.5,
        }
        for r, a in enumerate(accuracies, 1)
    ]  # fmt: skip


def curve(case, hyper, rows, diverged=None):
    """Return a run of the first seed."""
    summary = {} if diverged is None else {"diverged_in_round": diverged}
    return {FinalRun(case, hyper, 0): StoredRun(Path("nowhere"), rows=rows, summary=summary)}
