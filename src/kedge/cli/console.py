"""Where the command line writes: results to the standard output, progress and errors to the standard error."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

output = Console()
errors = Console(stderr=True)


def say(message: object) -> None:
    """Write a sentence of kedge's own to the standard error."""
    errors.print(f"kedge: {message}", markup=False, highlight=False, soft_wrap=True)


def say_to_all(message: object) -> None:
    """Write a sentence even where this process is to be quiet, because no other one speaks for it."""
    Console(stderr=True).print(f"kedge: {message}", markup=False, highlight=False, soft_wrap=True)


def progress_bar() -> Progress:
    """Return a bar that counts rounds and estimates the time left; it stays silent where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
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


def figure(value: float | None, form: str = ".4g") -> str:
    """Write a number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
