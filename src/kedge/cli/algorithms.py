"""`kedge algorithms`: what there is and what it costs."""

from rich.table import Table

from kedge.algorithms import ALGORITHMS
from kedge.cli.console import output
from kedge.cost import Cost, cost


def algorithms() -> None:
    """List the algorithms with what they send, compute and keep.

    The numbers are found by running the rules, per client of the cohort and round with K local steps.
    """
    table = Table(box=None, pad_edge=False)
    columns = ("id", "down", "up", "gradients", "client", "server", "cohort")
    wide = output.width >= 120
    for name in columns + (("what it is",) if wide else ()):
        table.add_column(name, no_wrap=name != "what it is")
    for name, kind in ALGORITHMS.items():
        few, many = (cost(kind(eta=0.1), local_steps=steps) for steps in (10, 11))
        one = [e for e in many.round if e.cohort == "first"]
        row = [
            name,
            _extra(many.down().vectors, sum(e.down.vectors for e in one)),
            _extra(many.up().vectors, sum(e.up.vectors for e in one)),
            _gradients(few, many),
            str(many.client.vectors),
            str(many.server.vectors),
            "all" if kind.full_participation else "any",
        ]
        table.add_row(*row, *([(kind.__doc__ or "").splitlines()[0]] if wide else []))
    output.print(table)
    output.print(
        "down, up: vectors of the model's size per client and round (+ what one client of the cohort sends and gets "
        "besides); gradients: per client and round, of minibatches, K local steps; client, server: vectors of state.",
        style="dim",
    )


def _extra(vectors: int, one: int) -> str:
    return f"{vectors} (+{one})" if one else str(vectors)


def _gradients(few: Cost, many: Cost) -> str:
    """Write the number of gradients as a formula in K, from its values at K = 10 and 11."""
    ordinary = _linear(few.gradients(), many.gradients())
    one = _linear(*(sum(e.gradients for e in c.round if e.cohort == "first") for c in (few, many)))
    passes = many.full_passes()
    terms = [ordinary] if ordinary != "0" else []
    terms += [f"{passes} full"] if passes else []
    return " + ".join(terms) + (f" (+{one})" if one != "0" else "")


def _linear(at_10: int, at_11: int) -> str:
    slope = at_11 - at_10
    fixed = at_10 - 10 * slope
    if not slope:
        return str(fixed)
    return f"{'' if slope == 1 else slope}K" + (f"{fixed:+d}" if fixed else "")
