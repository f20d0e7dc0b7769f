"""Progress of runs: a bar on a terminal, with the current runs above it; elsewhere one line per finished run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kedge.cli.console import errors, number
from kedge.runs.batch import Event
from kedge.runs.config import Config


def progress_bar() -> Progress:
    """Return a bar that counts rounds and estimates the time left; it stays silent if there is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("rounds,"),
        TimeElapsedColumn(),
        TextColumn("so far,"),
        TimeRemainingColumn(),
        TextColumn("to go"),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


class RunsDisplay:
    """Follows many runs, from what `run_batch` reports.

    Args:
        total: the rounds of all of them.
        played: how many of these a run has played after an event.
        line: what to say about a run that has ended.
        title: what they are for.
        metric: what to show of the running ones.
        console: where to.
        tables: what to show above.
    """

    def __init__(
        self,
        total: int,
        played: Callable[[Event], int],
        line: Callable[[Event], str],
        *,
        title: str = "",
        metric: str = "test_accuracy",
        console: Console = errors,
        tables: Callable[[], Iterable[RenderableType]] = list,
    ) -> None:
        self._played, self._line, self._title, self._metric = played, line, title, metric
        self._console, self._tables = console, tables
        self._rounds: dict[str, int] = {}
        self._running: dict[str, Event] = {}
        self._ended: dict[str, bool] = {}  # whether it had, before this command
        self._bar = progress_bar()
        self._task = self._bar.add_task("", total=total)
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def follow(self, event: Event) -> None:
        """Show what has happened."""
        self._rounds[event.name] = self._played(event)
        if event.ended is None:
            before = self._running.get(event.name)
            row = event.row or (before.row if before is not None else None)
            self._running[event.name] = Event(event.name, event.round, row)
            return
        self._running.pop(event.name, None)
        self._ended[event.name] = event.found
        if not self._console.is_terminal and not event.found:
            self._console.print(self._line(event), highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        found = sum(self._ended.copy().values())
        text = f"{self._title}{len(self._ended)} runs done{f' ({found} before)' if found else ''}"
        self._bar.update(self._task, completed=sum(self._rounds.copy().values()), description=text)
        now = Table(box=None, pad_edge=False, show_header=False)
        for name, event in sorted(self._running.copy().items()):
            value = (event.row or {}).get(self._metric)
            now.add_row("running", name, f"round {event.round}", number(self._metric, value))
        return Group(*self._tables(), now, self._bar)


def batch_display(configs: Mapping[str, Config], line: Callable[[Event], str], title: str = "") -> RunsDisplay:
    """Return what follows a batch of configurations, each of which is to play all its rounds."""
    rounds = {name: config.run.rounds for name, config in configs.items()}
    return RunsDisplay(
        sum(rounds.values()),
        lambda event: event.round if event.ended is None else rounds[event.name],
        line,
        title=title,
    )
