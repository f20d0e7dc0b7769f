"""One display of progress for all commands that run many."""

import io

from rich.console import Console

from kedge.cli.progress import RunsDisplay
from kedge.runs.batch import Event
from kedge.runs.reader import StoredRun


def ended(name, path, *, found=False):
    return Event(name, 4, ended=StoredRun(path, rows=[{"round": 4}], summary={}), found=found)


def played(event):
    return event.round if event.ended is None else 10


def shown(path, *, terminal):
    """What a display writes of one run that was found, one that ends, and one that plays."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=200)
    with RunsDisplay(30, played, lambda event: f"{event.name} ended", title="grid: ", console=console) as display:
        display.follow(ended("old", path, found=True))
        display.follow(Event("new", 2, {"test_accuracy": 0.5}))
        display.follow(Event("other", 3, {"test_accuracy": 0.25}))
        display.follow(Event("other", 4))
        display.follow(ended("new", path))
        if terminal:
            display._live.refresh()
    return written.getvalue()


def test_without_a_terminal_a_run_that_ends_is_a_line(tmp_path):
    assert shown(tmp_path, terminal=False) == "new ended\n"


def test_a_terminal_shows_what_is_running_and_how_far_all_are(tmp_path):
    said = shown(tmp_path, terminal=True)
    assert "grid: 2 runs done (1 before)" in said
    assert "24/30" in said
    last = said.rpartition("running")[2]
    assert "other" in last
    assert "25.0%" in last  # also after a round that was not evaluated
    assert "new ended" not in said
