"""The report as one HTML file that needs nothing else: it opens from disk, offline, and runs only its own scripts.

Whatever comes from a run is in a block of JSON, which the browser does not interpret, and gets into the page as text.
The policy in its head allows the page's own script and style by their checksums, and nothing from elsewhere.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kedge.errors import UsageError
from kedge.files import write_atomically
from kedge.report.contents import contents
from kedge.report.lines import Line

MARK = "<!doctype html>\n<!-- kedge report -->\n"
"""How every report starts; a file that starts otherwise is never overwritten."""

STYLES = ("uplot.min.css", "page.css")
SCRIPTS = ("uplot.min.js", "data.js", "drawing.js", "chart.js", "tables.js", "pictures.js", "main.js")

REPORT = "report.html"
"""The name of the page beside the figures of a comparison, a sweep or an experiment."""


def write_report(lines: Sequence[Line], path: Path, title: str, command: str) -> int:
    """Write the page of these lines; return its size in bytes."""
    check_target(path)
    written = page(contents(lines, title, command)).encode()
    write_atomically(path, written)
    return len(written)


def check_target(path: Path) -> None:
    """Refuse to overwrite anything but a report."""
    if path.is_dir():
        raise UsageError(f"out is {path}, but that is a directory; name a file such as report.html")
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK.encode():
                raise UsageError(f"out is {path}, but that file is not a report of kedge; nothing was overwritten")


def page(data: Mapping[str, Any], *, live: bool = False) -> str:
    """Return the page that shows the data; a ``live`` page asks its server for more."""
    style = "".join(_asset(name) for name in STYLES)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    own = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_checksum(script)}'; style-src '{_checksum(style)}'; img-src data: blob:; "
        f"connect-src {own}; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "data": escaped(data), "script": script, "live": str(live).lower()}
    first, *rest = _asset("page.html").split("{{")
    text = first
    for part in rest:
        name, _, after = part.partition("}}")
        text += parts[name] + after
    return MARK + text


def escaped(data: Mapping[str, Any]) -> str:
    """Return JSON that no browser can take for the end of a script or for a line break in one; it is ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("kedge.report") / "page" / name).read_text(encoding="utf-8")
