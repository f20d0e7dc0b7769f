"""A progress bar: of rich on a terminal, a line that is updated in a notebook, ten lines elsewhere."""

import sys
from typing import Any

from kedge.runs.live import LiveRun
from kedge.runs.reader import Row

LINES = 10
"""How many lines a run writes where nothing can be overwritten."""


class ProgressBar:
    """Shows how far the run is, and the last value of a metric.

    Args:
        metric: a column of the history; None means the accuracy or else the loss of the test set.
    """

    def __init__(self, metric: str | None = None) -> None:
        self._metric = metric
        self._bar: Any = None

    def on_start(self, run: LiveRun) -> None:
        """Show the bar."""
        if not run.leads:
            return
        self._bar = (_Notebook if _in_notebook() else _Terminal if sys.stderr.isatty() else _Lines)(run.rounds)
        self._bar.show(run.round, self._said(run))

    def on_round(self, run: LiveRun) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.show(run.round, self._said(run))

    def on_end(self, run: LiveRun) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_failure(self, run: LiveRun) -> None:
        """Leave it too."""
        self.on_end(run)

    def _said(self, run: LiveRun) -> str:
        row: Row = run.history[-1] if run.history else {}
        names = [self._metric] if self._metric else ["test_accuracy", "test_loss"]
        name = next((name for name in names if name in row), None)
        return "" if name is None else f"{name.replace('_', ' ')} {row[name]:.4g}"


def _in_notebook() -> bool:
    """Whether this is a kernel of Jupyter."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class _Terminal:
    def __init__(self, rounds: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("rounds,"), TimeRemainingColumn(),
            TextColumn("to go  {task.description}", markup=False), console=Console(stderr=True),
        )  # fmt: skip
        self._task = self._bar.add_task("", total=rounds)
        self._bar.start()

    def show(self, done: int, text: str) -> None:
        self._bar.update(self._task, completed=done, description=text)

    def close(self) -> None:
        self._bar.stop()


class _Notebook:
    def __init__(self, rounds: int) -> None:
        from IPython.display import display

        self._rounds = rounds
        self._handle: Any = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._shown = ""

    def show(self, done: int, text: str) -> None:
        full = 30 * done // self._rounds
        line = f"{'█' * full}{'░' * (30 - full)} {done}/{self._rounds} rounds  {text}"
        if line != self._shown:
            self._handle.update({"text/plain": line}, raw=True)
            self._shown = line

    def close(self) -> None:
        pass


class _Lines:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._tenth = -1

    def show(self, done: int, text: str) -> None:
        tenth = LINES * done // self._rounds
        if done and tenth > self._tenth:
            print(f"round {done} of {self._rounds}{f': {text}' if text else ''}", file=sys.stderr)
            self._tenth = tenth

    def close(self) -> None:
        pass
