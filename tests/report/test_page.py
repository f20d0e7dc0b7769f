"""The page: one file that runs only its own scripts, and the commands that write it."""

import base64
import hashlib
import json
import re
from importlib import resources

import pytest

import kedge
from kedge.cli.program import execute
from kedge.report.page import MARK, SCRIPTS, escaped, page
from tests.report.made import write_comparison, write_run

EVIL = "</script><script>alert(1)</script><!--&\u2028\u2029"


def asset(name):
    return (resources.files("kedge.report") / "page" / name).read_text(encoding="utf-8")


def written(path):
    """Return the data in a page."""
    return json.loads(re.search(r'id="contents">(.*?)</script>', path.read_text(), re.DOTALL).group(1))


def test_what_comes_from_runs_cannot_leave_its_block():
    text = escaped({EVIL: [EVIL]})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {EVIL: [EVIL]}


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page(live):
    text = page({"a": 1}, live=live)
    policy = re.search(r'Security-Policy" content="([^"]*)"', text).group(1)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    for kind, content in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert f"connect-src '{'self' if live else 'none'}'" in policy
    assert not re.search(r"""(src|href)=["'](?!#)""", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


def test_no_script_writes_markup_or_fetches_from_elsewhere():
    for name in SCRIPTS:
        text = asset(name)
        assert not re.search(r"</script|<!--|\r|innerHTML|eval\(|new Function|document\.write|insertAdjacent", text)


def test_the_vendored_library_is_the_published_one():
    files = {
        "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
    for name, digest in files.items():
        assert hashlib.sha256(asset(name).encode()).hexdigest() == digest


def test_report_writes_a_page(tmp_path, capsys):
    write_comparison(tmp_path / "runs")
    out = tmp_path / "page.html"
    for _ in range(2):  # a report may replace a report
        assert execute(["report", str(tmp_path / "runs"), "--out", str(out), "--title", "A & B"]) == 0
    assert "3 lines from 6 runs" in capsys.readouterr().out
    assert out.read_text().startswith(MARK)
    data = written(out)
    assert (data["title"], len(data["runs"]), data["targets"]["test_accuracy"]) == ("A & B", 6, 0.85)
    assert data["command"].startswith("kedge report ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["empty"], "empty holds no runs"),
        (["runs", "--out", "empty"], "out is empty, but that is a directory"),
        (["runs", "--out", "note.html"], "note.html, but that file is not a report of kedge; nothing was overwritten"),
        (["runs", "--out", "note.html/x"], "note.html is not a directory"),
    ],
)
def test_a_wrong_report_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.html").write_text("mine")
    write_run(tmp_path / "runs" / "a")
    assert execute(["report", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert (tmp_path / "note.html").read_text() == "mine"


def test_hostile_directories_become_text_or_a_sentence(tmp_path):
    write_run(tmp_path / "a", "file.py:" + EVIL, settings={f"data.{EVIL}": EVIL, "run.seed": "x"})
    write_run(
        tmp_path / "b", rows=[{"round": 1, "bytes_down": 1, "bytes_up": 1, "gradients": 1, "seconds": 1, EVIL: 2}]
    )
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.toml").write_text("= nonsense")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "metrics.jsonl").write_text('{"round": 1}\n')
    (tmp_path / "d" / "summary.json").symlink_to("/etc/passwd")
    write_run(tmp_path / "e", settings={"algorithm.name": 7})
    assert execute(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count("<script") == 2, "the data and the page's own"
    data = written(tmp_path / "page.html")
    problems = [problem for run in data["runs"] for problem in run["problems"]]
    assert any("cannot be read" in problem for problem in problems)
    assert any("line 1 is not a row" in problem for problem in problems)
    assert any("symbolic link" in problem for problem in problems)
    assert EVIL in data["metrics"]


def test_many_columns_and_odd_values_are_bounded(tmp_path):
    base = {"round": 1, "bytes_down": 1, "bytes_up": 1, "gradients": 1, "seconds": 1}
    write_run(tmp_path / "wide", rows=[base | {f"m{place}": place for place in range(3000)}])
    write_run(tmp_path / "long", settings={f"run.k{place}": "x" * 5000 for place in range(500)})
    assert execute(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    data = written(tmp_path / "page.html")
    assert len(data["metrics"]) == 60
    assert "Only the first 60 of 3003 metrics are shown." in data["notes"]
    assert (tmp_path / "page.html").stat().st_size < 500_000


def test_reading_for_a_report_changes_nothing(tmp_path):
    write_comparison(tmp_path / "runs")
    before = {file: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes()) for file in tmp_path.rglob("*")}
    assert execute(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert {file: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes()) for file in before} == before


QUICK = ["--dataset", "quadratics", "--clients", "4", "--cohort", "2", "--local-steps", "1", "--batch-size", "full"]


def test_compare_and_sweep_write_it_beside_their_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    compare = ["compare", *QUICK, "--rounds", "3", "--algorithms", "fedavg,scaffold", "--eta", "0.01", "--out", "c"]
    assert execute([*compare, "--seeds", "1", "--jobs", "1"]) == 0
    assert execute([*compare, "--seeds", "2", "--jobs", "1"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert [line["name"] for line in written(tmp_path / "c" / "report.html")["lines"]] == ["fedavg", "scaffold"]
    sweep = ["sweep", *QUICK, "--rounds", "3", "--grid", "algorithm.eta=0.01,0.02", "--seeds", "1", "--out", "s"]
    assert execute([*sweep, "--jobs", "1", "--metric", "test_loss"]) == 0
    names = [line["name"] for line in written(tmp_path / "s" / "report.html")["lines"]]
    assert names == ["scaffold-m, eta 0.01", "scaffold-m, eta 0.02"]


def test_a_report_is_the_same_for_the_same_runs(tmp_path):
    write_comparison(tmp_path / "runs")
    pages = []
    for name in ("a", "a"):
        assert execute(["report", str(tmp_path / "runs"), "--out", str(tmp_path / name)]) == 0
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert kedge.__version__ in pages[0].decode()
