"""One look per algorithm, the same in every figure and on every page: a colour, a line style and a marker."""

from collections.abc import Sequence
from typing import Any

from kedge.algorithms import ALGORITHMS

# Okabe and Ito's colours, which people with any colour vision can tell apart; beyond eight, line styles vary.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999933"]
GREY = "#888888"
"""For lines that are there for comparison, where there are too many for colours."""

DARK = {"#000000": "#f2f2f2"}
"""What replaces a colour on a dark background, where it could not be seen."""

RAMP = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151"]
DARK_RAMP = ["#8f84e0", "#4f9fd0", "#22a884", "#7ad151", "#fde725"]
"""Viridis without the end that the background hides: an order that everybody sees, for the lines of one algorithm."""

STYLES = ["-", "--", ":", "-."]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]

# The paper's algorithms have the eight colours to themselves; momentum is solid, what it is compared with is dashed.
_FIRST = {
    "fedavg": (0, "--"), "fedavg-m": (3, "-"), "scaffold": (2, "--"), "scaffold-m": (4, "-"),
    "fedavg-m-vr": (1, "-"), "scaffold-m-vr": (5, "-"), "mb-storm": (6, "--"), "ce-lsgd": (7, "--"),
}  # fmt: skip


def is_named(label: str) -> bool:
    """Whether a line is named after an algorithm, and so has its colour."""
    return label.partition(",")[0] in ALGORITHMS


def has_own_colour(label: str) -> bool:
    """Whether no other algorithm has the line's colour."""
    return label.partition(",")[0] in _FIRST


def look(label: str, place: int = 0) -> dict[str, Any]:
    """Return the look of a line, from the algorithm it is named after, or else from its place in the figure.

    Algorithms that share a colour differ in their markers. A variant, "fedavg, free step", has the algorithm's colour,
    but is dash-dotted and has open markers.
    """
    name, comma, _ = label.partition(",")
    shift = 0
    if name in _FIRST:
        colour, style = _FIRST[name]
    elif name in ALGORITHMS:
        turn, colour = divmod([other for other in ALGORITHMS if other not in _FIRST].index(name), len(COLOURS))
        style, shift = STYLES[2 + turn % 2], 1 + turn
    else:
        colour, style = place % len(COLOURS), STYLES[place // len(COLOURS) % len(STYLES)]
    variant = {"linestyle": "-.", "fillstyle": "none"} if comma else {"linestyle": style, "fillstyle": "full"}
    return {"color": COLOURS[colour], "marker": MARKERS[(colour + shift) % len(MARKERS)]} | variant


def shade(place: int, count: int, ramp: Sequence[str] = RAMP) -> str:
    """Return the colour of the ``place``-th of ``count`` lines along a ramp."""
    position = (len(ramp) - 1) * (place / (count - 1) if count > 1 else 0.5)
    low = min(int(position), len(ramp) - 2)
    ends = [[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in ramp[low : low + 2]]
    mixed = [round(first + (last - first) * (position - low)) for first, last in zip(*ends, strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)
