"""`kedge export` and `kedge export-model`: runs and models for other programs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kedge.cli import consent
from kedge.cli.console import output, size
from kedge.errors import UsageError
from kedge.files import write_atomically
from kedge.report.exports import check_format, exported
from kedge.report.lines import lines_of, runs_of
from kedge.runs.directory import check_place, check_run
from kedge.runs.reader import CONFIG, read_config

TEXT = ("csv", "latex")
"""Formats that may go to standard output."""


def export(places: Sequence[Path], kind: str, out: Path | None, target: float | None) -> None:
    """Write the runs as a table."""
    check_format(kind)
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"target is {target:g}, but must be above 0 and at most 1, as in 0.93")
    if out is None and kind not in TEXT:
        raise UsageError(f"format is {kind}, but only {' and '.join(TEXT)} can be printed; name a file with --out")
    if out is not None:
        check_new(out)
    content = exported(lines_of(runs_of(places)), kind, target)
    if out is None:
        sys.stdout.write(content.decode("utf-8", "surrogateescape"))
        return
    write_atomically(out, content)
    output.print(f"Written to {out}: {size(len(content))}", soft_wrap=True)


def export_model(path: Path, kind: str, out: Path | None, *, trust: bool) -> None:
    """Write the model of a run."""
    from kedge.runs import model_export as models

    if kind not in models.FORMATS:
        raise UsageError(f"format is {kind!r}, but must be one of {', '.join(models.FORMATS)}")
    out = out or Path("model").with_suffix({"torch-export": ".pt2"}.get(kind, f".{kind}"))
    check_new(out)
    check_run(path)
    state = models.stored_state(path)
    sections = read_config(path)
    if kind == "safetensors":
        from kedge.runs.directory import to_toml

        content = models.as_safetensors(state, None if sections is None else to_toml(sections))
    else:
        if sections is None:
            raise UsageError(f"{path} has no {CONFIG}, so its model cannot be built; --format safetensors needs none")
        from kedge.runs.config import check, problem_of
        from kedge.runs.rebuild import refuse_missing

        refuse_missing(sections, path)
        problem = problem_of(check(consent.settle(sections, path / CONFIG, named={}, trust=trust)))
        module = models.filled(problem.model, state, path)
        example = problem.federation.features
        content = models.as_onnx(module, example) if kind == "onnx" else models.as_program(module, example)
    write_atomically(out, content)
    output.print(f"Written to {out}: {len(state)} tensors, {size(len(content))}", soft_wrap=True)


def check_new(out: Path) -> None:
    """Refuse a file that already exists."""
    check_place(out.parent)
    if out.exists() or out.is_symlink():
        raise UsageError(f"out is {out}, but that exists; nothing was overwritten")
