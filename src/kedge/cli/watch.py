"""`kedge watch`: runs in progress, as a live page or as a table in the terminal."""

import time
import webbrowser
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kedge.cli.console import errors, figure, output, sentence
from kedge.report.lines import algorithm_of, seed_of, state_of
from kedge.report.watch import Followed, PageServer
from kedge.runs.reader import StoredRun

SECONDS = 1.0
"""How often the table is redrawn."""

WIDTH = 160
"""The width of the table if there is no terminal."""

AROUND = 6
"""Lines of the terminal that are not rows of the table."""


def watch(folder: Path, port: int, *, terminal: bool, open_: bool) -> None:
    """Follow the runs below a folder until Ctrl-C."""
    try:
        if terminal:
            _in_terminal(Followed(folder))
        else:
            _as_page(folder, port, open_=open_)
    except KeyboardInterrupt:
        errors.print("Ended; the runs are not affected.")


def _as_page(folder: Path, port: int, *, open_: bool) -> None:
    with PageServer(folder, port) as server:
        output.print(f"Watching {folder} at {server.address}", soft_wrap=True)
        errors.print("The page is for this machine and whoever has its address. Ctrl-C ends it.", soft_wrap=True)
        if open_:
            webbrowser.open(server.address)
        server.serve_forever()


def _in_terminal(followed: Followed) -> None:
    if not output.is_terminal:
        runs = followed.runs()
        Console(markup=False, highlight=False, emoji=False, width=WIDTH).print(table(runs, len(runs)))
        return
    with Live(console=output, auto_refresh=False) as live:
        while True:
            live.update(table(followed.runs(), max(1, output.height - AROUND)), refresh=True)
            time.sleep(SECONDS)


def table(runs: list[StoredRun], most: int) -> Table:
    """Return the runs, those in progress first."""
    order = sorted(runs, key=lambda run: run.summary is not None)
    shown = Table(box=None, pad_edge=False, caption_justify="left")
    for name in ("run", "algorithm", "seed", "round", "accuracy", "loss", "seconds", "state"):
        shown.add_column(name, justify="left" if name in ("run", "algorithm", "state") else "right", no_wrap=True)
    for run in order[:most]:
        row = run.rows[-1] if run.rows else {}
        seed = seed_of(run)
        shown.add_row(
            sentence(run.path.name), sentence(algorithm_of(run)), "-" if seed is None else str(seed), str(run.round),
            figure(row.get("test_accuracy"), ".1%"), figure(row.get("test_loss")), figure(row.get("seconds"), ".1f"),
            sentence(state_of(run)),
        )  # fmt: skip
    ended = sum(run.summary is not None for run in runs)
    shown.caption = f"{len(runs)} run{'s' * (len(runs) != 1)}, {ended} of them ended" + (
        f"; {len(runs) - most} more" * (len(runs) > most)
    )
    return shown
