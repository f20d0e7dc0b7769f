"""The run directory of a federation: the same files as a simulation's, written on the server."""

import math
import time
from collections.abc import Sequence
from logging import WARNING
from pathlib import Path

from flwr.common import log
from torch import Tensor

from kedge.client import FlatModule, Loss, as_taken, evaluate, summarised
from kedge.errors import FailedRunError
from kedge.files import cut
from kedge.flower.agreement import Agreement
from kedge.flower.arrays import all_finite
from kedge.flower.client import Data
from kedge.flower.wire import Told
from kedge.round import Moment
from kedge.rules import PERSONAL
from kedge.runs.directory import RunDirectory, environment
from kedge.runs.reader import METRICS, Row, read_rows, read_summary


class Record:
    """Writes the rows of a run, and its end."""

    def __init__(self, path: Path, agreed: Agreement, flat: FlatModule, test: Data | None, loss: Loss) -> None:
        self.directory = RunDirectory(path, agreed.sections, resume=True)
        self._agreed, self._flat, self._loss = agreed, flat, loss
        update = agreed.settings.local_update
        if update is not None and update.bound(flat.places).hidden():
            if test is not None:
                log(WARNING, "%s: it is not evaluated; see flower.eval_clients", PERSONAL)
            test = None
        self._test = None if test is None else as_taken(*test, flat.initial.dtype)
        self._last: Row = {}
        self._before, self._began = 0.0, time.monotonic()

    def begin(self, moment: Moment, seconds: float) -> bool:
        """Write what determines the result, and keep the rows up to this moment; return whether the run is finished."""
        fingerprint = self._agreed.fingerprint()
        if not self.directory.has_fingerprint(fingerprint):
            self.directory.write_fingerprint(fingerprint)
        if read_summary(self.directory.path) is not None:
            if moment.round >= self._agreed.run.rounds:
                return True
            self.directory.reopen()
        self.directory.write_configuration()
        self._keep(moment.round)
        self._before, self._began = seconds, time.monotonic()
        return False

    def _keep(self, round: int) -> None:
        """Cut off rows of rounds that will be played again, perhaps with other replies."""
        rows = self.directory.repaired_rows()
        kept = [row for row in rows if row["round"] <= round]
        self._last = kept[-1] if kept else {}
        if len(kept) < len(rows):
            file = self.directory.path / METRICS
            lines = file.read_bytes().splitlines(keepends=True)
            cut(file, sum(len(line) for line in lines[: len(kept)]))
        assert len(read_rows(self.directory.path).rows) == len(kept)

    def seconds(self) -> float:
        """Return the seconds so far, including those of earlier servers."""
        return self._before + time.monotonic() - self._began

    def is_due(self, done: int) -> bool:
        """Whether the model is evaluated after so many rounds."""
        return done % (self._agreed.run.eval_every or 1) == 0 or done == self._agreed.run.rounds

    def add(self, moment: Moment, before: Tensor, metrics: Sequence[Told]) -> Row:
        """Evaluate the model, if that is due, and write a row."""
        if not self.is_due(moment.round):
            return {}
        row: Row = {"round": moment.round}
        if self._test is not None:
            self._flat.buffers.copy_(moment.buffers)
            found = evaluate(self._flat.module, self._loss, *self._test)
            row |= {f"test_{name}": value for name, value in found.items() if math.isfinite(value)}
        row |= cohort_columns(metrics)
        row["step_norm"] = float((moment.state.x - before).norm())
        row |= {"bytes_down": moment.bytes_down, "bytes_up": moment.bytes_up, "gradients": moment.gradients}
        row["seconds"] = self.seconds()
        if math.isfinite(row["step_norm"]):
            self.directory.append_metrics(row)
            self.directory.flush_metrics()
            self._last = row
        return row

    def check(self, moment: Moment) -> None:
        """End a run whose model is no longer finite."""
        if not all_finite(moment.state.x):
            self.directory.write_summary(self._summary() | {"diverged_in_round": moment.round})
            name, eta = type(self._agreed.algorithm).__name__, self._agreed.algorithm.eta
            raise FailedRunError(f"{name} diverged in round {moment.round}; the likely cause is eta, which is {eta:g}")

    def finish(self, moment: Moment) -> None:
        """Write the model and the summary."""
        self._flat.bind(moment.state.x)
        self._flat.buffers.copy_(moment.buffers)
        written = self.directory.write_model(self._flat.module.state_dict())
        self.directory.write_summary(self._summary() | self._last | written)

    def _summary(self) -> dict[str, object]:
        versions = environment() | {"flwr": _flower_version()}
        return {"algorithm": repr(self._agreed.algorithm), "engine": "flower", "versions": versions}


def cohort_columns(metrics: Sequence[Told]) -> Row:
    """Return what the cohort found on its own test data: the mean and the worst tenth of its clients."""
    named = [{"loss": told.test_loss, "accuracy": told.test_accuracy} for told in metrics]
    rows = [{name: value for name, value in row.items() if value is not None} for row in named]
    return summarised(rows, "cohort") if rows and all(row.keys() == rows[0].keys() for row in rows) else {}


def _flower_version() -> str:
    from importlib.metadata import version

    return version("flwr")
