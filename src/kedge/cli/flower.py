"""`kedge flower`: an app for Flower, a federation on this machine, and a SuperNode that answers quickly."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from kedge.cli import consent, options
from kedge.cli.console import errors, figure, output, say, size
from kedge.cli.progress import progress_bar
from kedge.cli.run import RUNS
from kedge.cli.signals import StoppedError, stopping
from kedge.errors import FailedRunError, UsageError
from kedge.files import make_new_directory
from kedge.flower.loopback import Loopback
from kedge.flower.node import run_node
from kedge.flower.template import write_app
from kedge.problem import DATASETS
from kedge.runs.config import Config, check, federation_of, resolved
from kedge.runs.directory import check_place
from kedge.runs.own import places
from kedge.runs.reader import Row, read_rows, read_run

SMALL = {
    "data.clients": 3,
    "run.cohort": 2,
    "run.rounds": 5,
    "run.local_steps": 8,
    "run.eval_every": 1,
    "algorithm.eta": 0.5,
}
"""A federation for a first look."""

EPOCHS = "run.local_epochs"
"""What replaces the local steps."""

BUILT_IN = "an app is written for built-in data, models and algorithms; put your own into its task.py"

POLL = 0.3
"""Seconds between looks at the run."""


def new(directory: Path, config: Path | None, settings: list[str] | None, given: options.Given) -> None:
    """Write an app."""
    chosen = _chosen(config, settings, given)
    write(directory, chosen, out="runs/flower")
    task = directory / "federation" / "task.py"
    text = f"Written to {directory}: the model and the data are in {task}, the settings in pyproject.toml."
    output.print(text, highlight=False, soft_wrap=True)
    output.print(f"Run it on your SuperLink with `flwr run {directory}`.", highlight=False, soft_wrap=True)


def write(directory: Path, config: Config, out: str) -> None:
    """Write the app of a configuration."""
    write_app(directory, resolved(config), *_form(config), out)


def _form(config: Config) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes, or say why an app cannot be written."""
    if config.data.dataset not in DATASETS:
        raise UsageError(BUILT_IN)
    if config.model.loss not in (None, "cross-entropy"):
        raise UsageError(f"model.loss is {config.model.loss}, but an app is written for cross-entropy; pass your own "
                         "loss to its client_app and server_app")  # fmt: skip
    if config.run.lost_replies:
        raise UsageError("run.lost_replies is set, but a real federation loses replies on its own")
    if DATASETS[config.data.dataset].make is not None:
        raise UsageError(f"the data set is {config.data.dataset}, but a federation needs one that has samples")
    federation = federation_of(config)
    return tuple(federation.features.shape[1:]), int(federation.labels.max()) + 1


def _chosen(config: Path | None, settings: list[str] | None, given: Mapping[str, Any]) -> Config:
    """Return the configuration; without a file, of a few clients."""
    small = (
        {} if config is not None else {k: v for k, v in SMALL.items() if k != "run.local_steps" or EPOCHS not in given}
    )
    raw = options.configuration(config, settings, small | dict(given))
    if any(places(name) for name in consent.named_in(raw)):
        raise UsageError(BUILT_IN)
    return check(raw)


def demo(
    config: Path | None,
    settings: list[str] | None,
    given: Mapping[str, Any],
    out: Path | None,
    *,
    warm: bool,
) -> None:
    """Run a federation on this machine."""
    chosen = _chosen(config, settings, given)
    name = options.short_name(chosen.algorithm.name)
    if out is not None:
        check_place(out)
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"out is {out}, but that directory is not empty; nothing was overwritten")
    form = _form(chosen)
    path = (out or make_new_directory(RUNS, f"flower-{name}")).absolute()
    with tempfile.TemporaryDirectory(prefix="kedge-flower-") as place, stopping(patient=True) as stop:
        work = Path(place)
        write_app(work / "app", resolved(chosen), *form, str(path))
        with Loopback(work, warm=warm) as loop:
            output.print(f"{chosen.data.clients} SuperNodes and a SuperLink on 127.0.0.1:{loop.port}", highlight=False)
            loop.superlink()
            for number in range(chosen.data.clients):
                loop.node(number)
            loop.submit(work / "app")
            _follow(loop, path, chosen.run.rounds, stop)
            traffic = _traffic(loop)
    _draw(path, name)
    output.print(f"Flower counted {traffic}. Written to {path}.", highlight=False, soft_wrap=True)
    text = f"`kedge run {path / 'config.toml'}` simulates the same federation: the same model, bit for bit."
    output.print(text, highlight=False, soft_wrap=True)


def _follow(loop: Loopback, path: Path, rounds: int, stop: Any) -> None:
    """Show the rows as they come, until the run ends."""
    shown = 0
    with progress_bar() as bar:
        task = bar.add_task("waiting for the nodes", total=rounds)
        while True:
            code = loop.poll()
            rows = read_rows(path).rows
            for row in rows[shown:]:
                errors.print(_line(row), highlight=False)
                bar.update(task, completed=row["round"], description="")
            shown = len(rows)
            if stop():
                raise StoppedError(f"stopped; the results so far are in {path}", stop.signal)
            if code is not None:
                break
            if gone := [name for name in loop.ended() if name != "run"]:
                raise FailedRunError(f"{gone[0]} has ended: {loop.tail(gone[0])}")
            time.sleep(POLL)
    if code or not read_run(path).finished:
        details = _status(loop)
        raise FailedRunError(f"the federation failed: {details or loop.tail('run')}")


def _line(row: Row) -> str:
    sent = size(row["bytes_down"] + row["bytes_up"])
    accuracy, loss = figure(row.get("test_accuracy"), ".3f"), figure(row.get("test_loss"))
    return f"round {row['round']:3}  accuracy {accuracy}  loss {loss}  sent {sent}  {row['seconds']:.1f} s"


def _status(loop: Loopback) -> str:
    try:
        return str(loop.runs()[-1].get("status-details", ""))
    except (FailedRunError, IndexError):
        return ""


def _traffic(loop: Loopback) -> str:
    run = loop.runs()[-1]
    counted = run.get("network-traffic", {})
    return f"{size(counted.get('outbound-bytes', 0))} down and {size(counted.get('inbound-bytes', 0))} up"


def _draw(path: Path, name: str) -> None:
    from kedge.report.figures import draw_comparison  # matplotlib is slow to load

    draw_comparison({name: [read_run(path)]}, path / "curves", f"{name} on a Flower federation")


def node(arguments: Sequence[str]) -> None:
    """Be a SuperNode."""
    code = run_node(arguments, say)
    if code:
        raise typer.Exit(code)
