"""What `mkdocs build` does besides rendering docs/*.md: pages made from the README, notebooks and docstrings.

The documents are written to be read as files too, so their links lead to files. On the site, a link to a document
leads to its page, and a link to any other file of the repository to a copy of it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.website import algorithm_pages, notebooks, reference
from docs.website.formulas import typeset

ROOT = Path(__file__).parents[2]
FROM_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FROM_ROOT |= {"SECURITY.md": "reporting.md"}
CONSOLE = re.compile(r"^```console\n(?!\$ )", re.MULTILINE)
"""Commands without a prompt, which the highlighter would take for what a program prints."""

PICTURES = (".png", ".svg")
LINK = re.compile(r"(\]\()(?!\w+://|#|mailto:)([^)#\s]+)(#[^)\s]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, where mkdocs.yml leaves room for them."""
    page = _read("docs/algorithms.md")
    rooms: dict[str, list[Any]] = {
        "ALGORITHMS": [
            {family: [{algorithm_pages.title(name, page): f"algorithms/{name}.md"} for name in names]}
            for family, names in algorithm_pages.families(page)
        ],
        "REFERENCE": [{title: f"reference/{file}.md"} for file, (title, _) in reference.pages().items()],
        "OTHERS": [{_title(file): file.name} for file in _unlisted(str(config.nav))],
        "DECISIONS": [{_title(file): f"decisions/{file.name}"} for file in _decisions()],
    }
    config.nav = _filled(config.nav, rooms)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made: dict[str, str | bytes] = {}
    for source, page in FROM_ROOT.items():
        if (ROOT / source).is_file():
            made[page] = _relinked(_read(source), source, page)
    listed = "".join(f"- [{_title(file)}]({file.name})\n" for file in _decisions())
    made["decisions/index.md"] = f"# Decisions\n\nWhat somebody may question, what was decided, and why.\n\n{listed}"
    algorithms = _read("docs/algorithms.md")
    for name, text in algorithm_pages.pages(algorithms).items():
        made[f"algorithms/{name}.md"] = _relinked(text, "docs/algorithms.md", f"algorithms/{name}.md")
    made |= {f"reference/{file}.md": text for file, (_, text) in reference.pages().items()}
    for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text, images = notebooks.page_of(file.stem, file.read_text(encoding="utf-8"))
        text = _relinked(text, f"docs/notebooks/{file.name}", f"notebooks/{file.stem}.md")
        made[f"notebooks/{file.stem}.md"] = f"{text}\n[Download this notebook]({file.name}).\n"
        made |= {f"notebooks/{name}": picture for name, picture in images.items()}
    documents = [file for file in files if file.src_uri.endswith(".md")]
    for file in documents:
        source = f"docs/{file.src_uri}"
        made[file.src_uri] = _relinked(_read(source), source, file.src_uri)
        files.remove(file)
    made["algorithms.md"] = algorithm_pages.overview(str(made["algorithms.md"]))
    for target in sorted(_copies(made)):
        made.setdefault(target, _copy(target))
    for uri, content in made.items():
        if uri.endswith(".md") and isinstance(content, str):
            content = CONSOLE.sub("```sh\n", typeset(content))
        files.append(File.generated(config, uri, content=content))
    return files


def _filled(nav: Any, rooms: dict[str, list[Any]]) -> Any:
    """Replace the words in capitals by the generated parts."""
    if isinstance(nav, dict):
        return {key: _filled(value, rooms) for key, value in nav.items()}
    if not isinstance(nav, list):
        return nav
    filled: list[Any] = []
    for item in nav:
        filled += rooms[item] if isinstance(item, str) and item in rooms else [_filled(item, rooms)]
    return filled


def _relinked(text: str, source: str, page: str) -> str:
    """Turn the links of a document between files into links between pages."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        goal = _page_of(target)
        return f"{found[1]}{posixpath.relpath(goal, posixpath.dirname(page) or '.')}{found[3] or ''}{found[4]}"

    return LINK.sub(link, text)


def _page_of(target: str) -> str:
    """Return where the site has a file of the repository."""
    if target in FROM_ROOT:
        return FROM_ROOT[target]
    if target == "docs/decisions":
        return "decisions/index.md"
    if target.startswith("docs/") and target.endswith((".md", ".ipynb", *PICTURES)):
        return target.removeprefix("docs/").replace(".ipynb", ".md")
    if target.endswith(PICTURES):
        return f"files/{target}"
    return f"files/{target}.txt" if not (ROOT / target).is_dir() else f"files/{target}/index.txt"


def _copies(made: dict[str, str | bytes]) -> set[str]:
    """Return the copies of files that the pages link to."""
    found = set()
    for page, text in made.items():
        if isinstance(text, str):
            for link in LINK.finditer(text):
                goal = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
                found |= {goal} if goal.startswith("files/") else set()
    return found


def _copy(target: str) -> str | bytes:
    source = ROOT / target.removeprefix("files/").removesuffix(".txt").removesuffix("/index")
    if target.endswith(PICTURES):
        return source.read_bytes()
    if source.is_dir():
        return "".join(f"--- {file.name}\n\n{file.read_text('utf-8')}\n" for file in sorted(source.glob("*.toml")))
    return source.read_text(encoding="utf-8")


def _unlisted(nav: str) -> list[Path]:
    """Return the documents that mkdocs.yml does not name."""
    return [file for file in sorted((ROOT / "docs").glob("*.md")) if not re.search(rf"\b{re.escape(file.name)}", nav)]


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs/decisions").glob("0*.md"))


def _title(file: Path) -> str:
    return re.sub(r"^# (\d+\. )?", "", file.read_text(encoding="utf-8").partition("\n")[0])


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
