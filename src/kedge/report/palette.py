"""One look per algorithm, the same in every figure: a colour, a line style and a marker."""

from typing import Any

from kedge.algorithms import ALGORITHMS

# Okabe and Ito's colours, which people with any colour vision can tell apart; beyond eight, line styles vary.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999933"]
STYLES = ["-", "--", ":", "-."]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]

# The paper's algorithms have the eight colours to themselves; momentum is solid, what it is compared with is dashed.
_FIRST = {
    "fedavg": (0, "--"), "fedavg-m": (3, "-"), "scaffold": (2, "--"), "scaffold-m": (4, "-"),
    "fedavg-m-vr": (1, "-"), "scaffold-m-vr": (5, "-"), "mb-storm": (6, "--"), "ce-lsgd": (7, "--"),
}  # fmt: skip


def look(label: str, place: int = 0) -> dict[str, Any]:
    """Return the look of a line, from the algorithm it is named after; a variant, "fedavg, free step", is dash-dotted.

    A line named after no algorithm gets the look of its place in the figure.
    """
    name, comma, _ = label.partition(",")
    if name in _FIRST:
        colour, style = _FIRST[name]
    elif name in ALGORITHMS:
        others = [other for other in ALGORITHMS if other not in _FIRST]
        colour, style = others.index(name) % len(COLOURS), STYLES[2 + others.index(name) // len(COLOURS) % 2]
    else:
        colour, style = place % len(COLOURS), STYLES[place // len(COLOURS) % len(STYLES)]
    return {"color": COLOURS[colour], "linestyle": "-." if comma else style, "marker": MARKERS[colour]}
