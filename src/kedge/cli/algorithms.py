"""`kedge algorithms`: the algorithms and what they cost."""

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.theme import Theme

from kedge.algorithms import ALGORITHMS, ALIASES, find_algorithm
from kedge.cli.console import output
from kedge.errors import UsageError
from kedge.report.costs import Figures, figures, read_page, sections, symbols

WIDTH = 120
"""From how many columns on a terminal shows what each algorithm is; also the width where nobody looks at it."""

# Formulas are most of a section: colour alone sets them off, without the background that code usually has.
PLAIN = Theme({"markdown.code": "cyan", "markdown.table.header": "bold", "markdown.table.border": "dim"})


def algorithms(detail: str | None) -> None:
    """Print all algorithms, or one in detail."""
    if detail is not None:
        _print_section(detail)
        return
    console = output if output.is_terminal else Console(markup=False, highlight=False, emoji=False, width=WIDTH)
    table = Table(box=None, pad_edge=False)
    wide = console.width >= WIDTH
    for name in ("id", *Figures._fields, *(("what it is",) if wide else ())):
        table.add_column(name, no_wrap=name != "what it is")
    for name, kind in ALGORITHMS.items():
        table.add_row(name, *figures(kind), *([(kind.__doc__ or "").splitlines()[0]] if wide else []))
    console.print(table)
    if not wide:
        output.print(f"A terminal of {WIDTH} columns also shows what each is; `kedge algorithms NAME` explains one.")
    output.print(f"Other names: {', '.join(f'{name} for {known}' for name, known in ALIASES.items())}.")
    output.print(
        "down, up: vectors of the model's size per client and round (+ what one client of the cohort adds "
        "to that); gradients: per client and round, of minibatches, K local steps; client, server: vectors of state.",
        style="dim",
    )


def _print_section(name: str) -> None:
    kind = find_algorithm(name)
    page = read_page()
    text = next((text for id, text in sections(page).items() if ALGORITHMS.get(id) is kind), None)
    if text is None:
        raise UsageError(f"{name} is not built in, and only built-in algorithms are described")
    with output.use_theme(PLAIN):
        output.print(Markdown(text))
        output.print()
        output.print(Markdown(symbols(page)), style="dim")
