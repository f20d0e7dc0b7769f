"""The table of all settings, in docs/settings.md.

    python -m docs.tables.settings docs/settings.md

rewrites it in place from their declarations.
"""

import re
import sys
from pathlib import Path

from kedge.runs.settings import Config
from kedge.settings import Section, Setting

PART = re.compile(r"(?<=<!-- generated: )(?P<name>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def refreshed(page: str) -> str:
    """Return the page with fresh tables."""
    return PART.sub(lambda found: f"{found['name']} -->\n\n{table(Config.sections[found['name']])}\n", page)


def table(section: type[Section]) -> str:
    """Write the settings of a section, a row each."""
    head = ("setting", "option", "type", "default", "range", "meaning")
    rows = [head, ("---",) * len(head), *(_row(each) for each in section.declared.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(each: Setting) -> tuple[str, ...]:
    option = f"`--{each.option.replace('_', '-')}`" if each.option else "-"
    default = each.start_text or "-"
    if each.start != each.default:
        default += f"; in Python {each.default}"
    return f"`{each.name}`", option, each.type, default, each.range or "-", each.help()


def main(paths: list[str]) -> None:
    """Rewrite the tables of these pages."""
    for path in map(Path, paths):
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
