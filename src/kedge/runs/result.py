"""The result of a run, and what one does with it first: look, plot, put it into a table."""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from kedge.client import Metric
from kedge.errors import FailedRunError, UsageError
from kedge.runs.reader import Row
from kedge.simulator import Simulation

if TYPE_CHECKING:
    from pandas import DataFrame

COUNTERS = ("round", "bytes_down", "bytes_up", "gradients", "seconds", "step_norm")
"""Columns of a row that say how far the run was, not how good."""


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run."""

    model: nn.Module
    """The final model: an independent copy of your model with the trained parameters, in evaluation mode."""
    history: list[Row]
    """One row per evaluated round; `round` counts finished rounds; bytes, gradients and seconds are totals."""
    cohorts: Sequence[list[int]]
    """The clients of every round, in the order in which they were drawn."""
    server: dict[str, Tensor]
    """The server's vectors by name: `x`, and whatever else the algorithm keeps."""
    simulation: Simulation
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Your own metrics, which the test set was evaluated with."""
    interrupted: bool = False
    """Whether Ctrl-C ended the run before its last round."""

    def client(self, number: Any) -> dict[str, Tensor]:
        """Return a client's own vectors by name; the client is given by its number or name."""
        return self.simulation.client(number)

    def evaluate_clients(self) -> list[dict[str, float]]:
        """Return the final model's loss, accuracy and metrics at each client.

        They are evaluated on the clients' test sets if the federation has any, else on the data that they train on.
        """
        return self.simulation.evaluate_clients(self.metrics)

    def to_pandas(self) -> "DataFrame":
        """Return the history as a table, one row per evaluated round."""
        return as_table(self.history)

    def plot(self, *columns: str) -> Any:
        """Draw columns of the history against rounds; the default is accuracy, metrics and loss on the test set.

        Returns a figure of matplotlib: a notebook shows it, and ``.savefig("curves.png")`` saves it.
        """
        return plot({"": self.history}, columns)

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        values = [f"{name} {value:.4g}" for name, value in last.items() if name not in COUNTERS]
        name = type(self.simulation.algorithm).__name__
        return f"Result({name} after {self.simulation.round} rounds: {', '.join(values) or 'not evaluated'})"


class DivergedError(FailedRunError):
    """A run whose loss or model is no longer finite; `result` holds all that was recorded before."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


def need(package: str, what: str, extra: str | None = None) -> None:
    """Say in one sentence how to get a package that is an extra."""
    top = package.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        extra = extra or top
        raise UsageError(f"{what} needs {top}, which is not installed; run `pip install 'kedge[{extra}]'`")


def as_table(rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Return rows as a table of pandas."""
    need("pandas", "to_pandas")
    from pandas import DataFrame

    return DataFrame(list(rows))


def plot(histories: Mapping[str, Sequence[Row]], columns: Sequence[str] = ()) -> Any:
    """Draw columns of several histories, a panel per column and a line per history."""
    from matplotlib.figure import Figure  # slow to load
    from matplotlib.ticker import MaxNLocator

    class Picture(Figure):
        """A figure that a notebook shows by itself."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=110)
            return content.getvalue()

    known = list(dict.fromkeys(name for rows in histories.values() for row in rows for name in row))
    for name in columns:
        if name not in known:
            raise UsageError(f"the history has no column {name!r}; it has {', '.join(known) or 'no rows'}")
    chosen = list(columns) or [name for name in known if name.startswith("test_")] or known[1:2]
    if not chosen:
        raise UsageError("the history has no rows to plot")
    picture = Picture(figsize=(5 * len(chosen), 3.5), layout="constrained")
    for name, axes in zip(chosen, picture.subplots(1, len(chosen), squeeze=False)[0], strict=True):
        for label, rows in histories.items():
            points = [(row["round"], row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else None)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_title(name.replace("_", " "))
        axes.grid(alpha=0.3)
        if len(histories) > 1:
            axes.legend()
    return picture
