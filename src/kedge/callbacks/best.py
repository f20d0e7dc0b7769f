"""Stop when nothing improves, and keep the best model.

Both look only at the history, and `KeepBest` at its own file too, so a run that was killed and resumed stops in the
same round with the same model.
"""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from kedge.checks import is_higher_better, real, whole
from kedge.errors import UsageError
from kedge.files import refuse_link, write_atomically
from kedge.runs.live import LiveRun
from kedge.runs.reader import Row

BEST = "best.safetensors"


class _Judge:
    """Compares rows by one metric."""

    def __init__(self, metric: str, higher: bool | None) -> None:
        self.metric = metric
        self.higher = is_higher_better(metric) if higher is None else higher

    def value(self, row: Row) -> float:
        """Return the metric of a row, larger meaning better."""
        if self.metric not in row:
            raise UsageError(f"metric is {self.metric!r}, but a row has only {', '.join(row)}")
        return row[self.metric] if self.higher else -row[self.metric]


class EarlyStopping:
    """Stops the run when a metric has not improved for ``patience`` evaluations.

    Args:
        metric: a column of the history.
        patience: how many evaluations without an improvement to wait for.
        min_delta: what counts as an improvement: more than this.
        higher: whether higher is better; None means yes, unless the metric is a loss.
    """

    def __init__(
        self, metric: str = "test_loss", patience: int = 10, min_delta: float = 0.0, higher: bool | None = None
    ) -> None:
        self._judge = _Judge(metric, higher)
        self.patience = whole("patience", patience, 1)
        self.min_delta = real("min_delta", min_delta, positive=False)

    def on_round(self, run: LiveRun) -> None:
        """Stop, if there were too many rows without an improvement."""
        if not run.leads or not run.history or run.history[-1]["round"] != run.round:
            return
        best, since = float("-inf"), 0
        for row in run.history:
            value = self._judge.value(row)
            best, since = (value, 0) if value > best + self.min_delta else (best, since + 1)
        if since >= self.patience:
            run.stop()


class KeepBest:
    """Keeps the model of the round with the best value of a metric; in a run with a directory, in a file there too.

    Args:
        metric: a column of the history.
        higher: whether higher is better; None means yes, unless the metric is a loss.
    """

    def __init__(self, metric: str = "test_loss", higher: bool | None = None) -> None:
        self._judge = _Judge(metric, higher)
        self.round: int | None = None
        """The round of the best model."""
        self.value: float | None = None
        """Its value of the metric."""
        self.model: nn.Module | None = None
        """The model itself, ready to predict."""

    def on_start(self, run: LiveRun) -> None:
        """Find the best model of a run that is resumed."""
        self.round = self.value = self.model = None
        rows = {int(row["round"]): row for row in run.history}
        kept = None if run.directory is None or not rows else _read(run.directory / BEST)
        if kept is not None and kept[0] in rows:
            self.round, self.model = kept[0], run.model
            self.value = rows[self.round][self._judge.metric]
            self.model.load_state_dict(kept[1])

    def on_evaluate(self, run: LiveRun, row: Row) -> None:
        """Keep the model, if it is better than all before."""
        value = self._judge.value(row) if run.leads else math.nan
        if math.isnan(value) or (
            self.value is not None and value <= self._judge.value({self._judge.metric: self.value})
        ):
            return
        self.round, self.value, self.model = run.round, row[self._judge.metric], run.model
        if run.directory is not None:
            refuse_link(run.directory / BEST)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
            write_atomically(run.directory / BEST, save(tensors, {"round": json.dumps(self.round)}))


def _read(path: Path) -> tuple[int, dict[str, Tensor]] | None:
    """Return the round and the tensors of a file; None if it is missing or damaged."""
    refuse_link(path)
    try:
        with safe_open(path, "pt") as file:
            said: Any = file.metadata() or {}
            return int(said.get("round", "0")), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError):
        return None
