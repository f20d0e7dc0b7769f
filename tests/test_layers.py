"""The layers: who may import whom."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import kedge

ROOT = Path(kedge.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"
SMALL = {"errors", "checks", "keyed", "samples"}
CORE = SMALL | {
    "direction", "exchange", "algorithm", "local_steps", "costs", "forming", "round", "settings", "questions",
    "shards", "calls", "schedules", "local_update", "local_updates", "rules", "probe", "transforms",
}  # fmt: skip
ALLOWED = {
    "errors": set(),
    "checks": {"errors"},
    "keyed": {"checks", "errors"},
    "samples": {"checks", "errors"},
    "files": {"checks", "errors"},
    "own_code": {"errors"},
    "problem": SMALL,
    "algorithms": CORE | {"own_code"},
    "client": CORE,
    "simulator": CORE | {"client", "files", "problem"},
    "flower": CORE | {"algorithms", "client", "files", "own_code", "problem", "runs"},
    "theory": CORE | {"algorithms", "client", "problem", "simulator"},
    "runs": CORE | {"client", "files", "own_code", "problem", "simulator", "algorithms", "theory"},
    "callbacks": CORE | {"files", "runs"},
    "report": CORE | {"files", "algorithms", "runs", "theory"},
    "__main__": {"cli"},
    "reproduce": CORE | {"files", "own_code", "problem", "algorithms", "simulator", "runs", "report"},
    "cli": CORE
    | {
        "files",
        "flower",
        "own_code",
        "problem",
        "simulator",
        "algorithms",
        "runs",
        "report",
        "reproduce",
        "theory",
    },
} | {name: CORE - {name} for name in CORE - SMALL}


def imported(file: Path) -> set[str]:
    """Return the parts of kedge that a file imports; `kedge` itself stands for the whole."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name and name.split(".")[0] == "kedge":
                found.add(name.split(".")[1] if "." in name else "kedge")
    return found


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_stay_within_the_layers(file):
    layer = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer == "__init__":
        return
    assert imported(file) <= ALLOWED[layer] | {layer}


def test_no_algorithm_is_named_outside_its_layer():
    names = {kind.__name__ for kind in kedge.ALGORITHMS.values()}
    for layer in ("simulator", "problem", "report"):
        for file in (ROOT / layer).rglob("*.py"):
            used = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
            assert not used & names, file


def test_flower_loads_no_simulator():
    program = "import sys, kedge.flower; print([name for name in sys.modules if name.startswith('kedge.simulator')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_no_two_classes_share_a_name():
    homes = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(ROOT)))
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert twice == {"Gatherer": ["flower/gather.py", "simulator/gather.py"]}  # two ways to do the same, `round.Gather`


def test_the_picture_of_the_rooms_names_every_module_and_package():
    picture = (DOCS / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} <= set(re.findall(r"\w+", picture))


def test_no_module_has_the_name_of_a_function_of_its_package():
    for file in ROOT.rglob("__init__.py"):
        modules = {path.stem for path in file.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                origin = ROOT.parent / node.module.replace(".", "/")
                for name in {alias.asname or alias.name for alias in node.names} & modules:
                    assert (origin / f"{name}.py").exists() or (origin / name).is_dir(), f"{file}: {name}"
