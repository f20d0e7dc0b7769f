"""`kedge watch`: runs in progress, as a live page or as a table in the terminal."""

import time
import webbrowser
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kedge.cli.console import errors, figure, output, sentence
from kedge.report.lines import algorithm_of, is_held_out, seed_of, state_of
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
        shown = table(runs, len(runs), followed.folder)
        Console(markup=False, highlight=False, emoji=False, width=WIDTH).print(shown)
        return
    with Live(console=output, auto_refresh=False) as live:
        while True:
            live.update(table(followed.runs(), max(1, output.height - AROUND), followed.folder), refresh=True)
            time.sleep(SECONDS)


def table(runs: list[StoredRun], most: int, folder: Path) -> Table:
    """Return the runs, those in progress first; a column says what they were evaluated on, if that differs."""
    kinds = {is_held_out(run) for run in runs}
    kind = "held-out " if kinds == {True} else ""
    mixed = ["evaluated on"] if len(kinds) == 2 else []
    order = sorted(runs, key=lambda run: run.summary is not None)
    shown = Table(box=None, pad_edge=False, caption_justify="left")
    for name in ("run", "algorithm", "seed", "round", *mixed, f"{kind}accuracy", f"{kind}loss", "seconds", "state"):
        left = name in ("run", "algorithm", "state", *mixed)
        shown.add_column(name, justify="left" if left else "right", no_wrap=True)
    for run in order[:most]:
        row = run.rows[-1] if run.rows else {}
        seed, place = seed_of(run), _place(run.path, folder)
        shown.add_row(
            sentence(place), sentence(algorithm_of(run)), "-" if seed is None else str(seed), str(run.round),
            *(["held-out samples" if is_held_out(run) else "test set"] * len(mixed)),
            figure(row.get("test_accuracy"), ".1%"), figure(row.get("test_loss")), figure(row.get("seconds"), ".1f"),
            sentence(state_of(run)),
        )  # fmt: skip
    ended = sum(run.summary is not None for run in runs)
    said = "all ended" if runs and ended == len(runs) else f"{ended} of them ended"
    shown.caption = f"{len(runs)} run{'s' * (len(runs) != 1)}, {said}" + (
        f"; {len(runs) - most} more" * (len(runs) > most)
    )
    return shown


def _place(path: Path, folder: Path) -> str:
    """Return the path of a run below the folder; the folder itself may be the run."""
    below = path.relative_to(folder) if path.is_relative_to(folder) else path
    return str(below) if below.parts else path.absolute().name
