"""The page on reproduction: its generated parts are current, and filled from results."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kedge.reproduce import page
from kedge.reproduce.results import Measure, write_measures

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduce.md"


@pytest.mark.parametrize("path", [PAGE, ROOT / "README.md"], ids=lambda path: path.name)
def test_the_generated_parts_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert page.refreshed(text, ROOT / "experiments" / "results") == text, "run `make docs`"


def test_a_claim_without_results_says_so(tmp_path):
    assert page.claims(tmp_path, beyond=False).count("not run yet | not run yet") == 14


def test_results_fill_the_page_and_smoke_does_not(tmp_path, monkeypatch):
    row = Measure("all 10 clients", "tuned", "", 0, 0.1, None, 0.5, 1.0, 0.4, 0.6, 0.5, 0.5, 10, 100.0, 1.0, None)
    speeds = {"fedavg": 0.2, "fedavg-m": 0.3, "scaffold": 0.4, "scaffold-m": 0.5}
    rows = [replace(row, line=line, seed=s, speed=v + s / 10) for line, v in speeds.items() for s in range(3)]
    for scale in ("smoke", "laptop"):
        folder = tmp_path / "experiments" / "results" / "mlp-full" / scale
        folder.mkdir(parents=True)
        write_measures(folder / "summary.csv", rows)
        table = page.claims(tmp_path / "experiments" / "results", beyond=False)
        assert ("fedavg-m - fedavg: +10.00" in table) == (scale == "laptop")
    assert "**reproduced**<br>tuned: holds" in table
    assert "laptop/verdict.md) | reproduced |" in page.summary(tmp_path / "experiments" / "results")
    monkeypatch.chdir(tmp_path)
    shutil.copy(PAGE, "page.md")
    page.main(["page.md"])
    assert table in Path("page.md").read_text(encoding="utf-8")
