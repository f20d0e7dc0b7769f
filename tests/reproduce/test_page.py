"""The page on reproduction: its generated parts are current, and filled from results."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from docs.tables import reproduction as page
from kedge.reproduce.experiment import load, names
from kedge.reproduce.results import write_measures
from tests.reproduce.rows import ROW

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduce.md"


@pytest.mark.parametrize("path", [PAGE, ROOT / "README.md"], ids=lambda path: path.name)
def test_the_generated_parts_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert page.refreshed(text, ROOT / "experiments" / "results") == text, "run `make docs`"


def test_every_panel_of_every_claim_has_a_row_also_where_nothing_was_run(tmp_path):
    table = page.claims(tmp_path, beyond=False)
    panels = [
        (experiment.name, claim.text, panel)
        for experiment in map(load, names())
        if not experiment.beyond
        for claim in experiment.claims
        for panel in claim.panels or experiment.panels
    ]
    assert len(table.splitlines()) == 2 + len(panels)
    assert all(any(text in row and panel in row for row in table.splitlines()) for _, text, panel in panels)
    resnet = sum(name.startswith("resnet") for name, _, _ in panels)
    assert table.count("**not testable at this scale**") == resnet
    assert table.count("**not run**") == len(panels) - resnet


def test_what_the_paper_does_not_state_is_listed():
    table = page.unstated()
    assert "| Figures 7 and 8 | the betas (1, 0.5, 0.2, 0.1 and 0.05), whether the learning rate was the same" in table


def test_results_fill_the_page_and_smoke_does_not(tmp_path, monkeypatch):
    ends = {"fedavg": 20.0, "fedavg-m": 10.0, "scaffold": 16.0, "scaffold-m": 8.0}
    rows = [
        replace(ROW, panel="all 10 clients", line=line, seed=s, rounds_to=v + 0.01 * s * v, loss=v + s, protocol=how)
        for line, v in ends.items()
        for s in range(3)
        for how in ("tuned", "second", "finer")
    ]
    for scale in ("smoke", "laptop"):
        folder = tmp_path / "experiments" / "results" / "mlp-full" / scale
        folder.mkdir(parents=True)
        write_measures(folder / "summary.csv", rows)
        table = page.claims(tmp_path / "experiments" / "results", beyond=False)
        assert ("fedavg-m over fedavg: 2.00 [2.00, 2.00] times fewer rounds" in table) == (scale == "laptop")
    assert "p = 0 (as claimed)<br>" in table
    assert "**reproduced** | [laptop](../experiments/results/mlp-full/laptop/verdict.md)" in table
    summary = page.summary(tmp_path / "experiments" / "results")
    assert "all clients take part. | **reproduced** in Figure 1(a) |" in summary
    assert summary.count("**not testable at this scale** in Figure 2(a), left, Figure 2(a), right |") == 1
    monkeypatch.chdir(tmp_path)
    shutil.copy(PAGE, "page.md")
    page.main(["page.md"])
    assert table in Path("page.md").read_text(encoding="utf-8")


def test_each_panel_is_shown_at_the_best_scale_at_which_it_was_run(tmp_path):
    def row(panel, line, seed):
        ends = {"fedavg": 0.8, "scaffold": 0.8, "fedavg-m": 0.9, "scaffold-m": 0.9}
        return replace(ROW, panel=panel, line=line, seed=seed, accuracy=ends[line] + 0.001 * seed)

    for scale, panels in {"laptop": ["K = 16", "K = 64"], "overnight": ["K = 64"]}.items():
        folder = tmp_path / "horizon" / scale
        folder.mkdir(parents=True)
        lines = ("fedavg", "fedavg-m", "scaffold", "scaffold-m")
        rows = [row(panel, line, seed) for panel in panels for line in lines for seed in range(3)]
        write_measures(folder / "summary.csv", rows)
    shown = {finding.panel: scale for scale, finding in page.judged(load("horizon"), tmp_path)}
    assert shown["K = 16"] == "laptop"
    assert shown["K = 64"] == "overnight"
    assert shown["K = 16, decayed"] == "laptop"  # not run at all
