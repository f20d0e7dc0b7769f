"""The page in a real browser: every control does what it says, and nothing that a run contains becomes markup."""

import csv
import io
import re
import xml.etree.ElementTree as ET

import pytest

from kedge.cli.program import execute
from kedge.report.lines import lines_of
from kedge.report.page import write_report
from kedge.runs.reader import StoredRun
from tests.report.browser import CHROMIUM, chromium, opened, serious
from tests.report.made import rows_of, write_comparison, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")

EVIL = "<img src=x onerror=document.title=1><script>document.title=2</script>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def report_of(folder):
    page = folder / "page.html"
    assert execute(["report", str(folder), "--out", str(page)]) == 0
    return page.as_uri()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return report_of(write_comparison(tmp_path_factory.mktemp("runs")))


def table(page):
    return [[cell.strip() for cell in row.split("\t")] for row in page.locator("#table tbody").inner_text().split("\n")]


def column(page, name):
    heads = [head.strip().lower() for head in page.locator("#table thead th").all_inner_texts()]
    place = heads.index(name)
    return [row[place] for row in table(page)]


def saved(page, kind):
    page.select_option("#format", kind)
    with page.expect_download() as download:
        page.click("#download")
    return download.value.path().read_bytes()


def rows(page):
    return list(csv.DictReader(io.StringIO(saved(page, "csv").decode())))


def test_the_numbers_on_the_page_are_those_of_the_runs(browser, address):
    with opened(browser, address) as page:
        assert page.inner_text("#title") == "digits: fedavg, mb-storm, scaffold-m"
        assert page.inner_text("#subtitle") == "3 lines from 6 runs"
        assert column(page, "line") == ["fedavg", "mb-storm", "scaffold-m"]
        assert column(page, "final accuracy") == ["77.9 % ± 0.1", "89.4 % ± 0.1", "84.9 % ± 0.1"]
        # 1 - exp(-r / speed) reaches 0.6 / 0.9 for speeds 10, 7 and 4
        page.fill("#target", "0.6")
        assert column(page, "rounds to 60.0 %") == ["11", "5", "8"]
        assert column(page, "bytes to 60.0 %") == ["16.5 kB", "7.5 kB", "12 kB"]
        page.fill("#target", "0.9")
        assert column(page, "rounds to 90.0 %") == ["–", "–", "–"]
        page.select_option("#target-metric", "test_loss")
        assert float(page.input_value("#target")) > 0
        cards = page.locator(".card").all_inner_texts()
        assert "89.4 %" in cards[0]
        assert "mb-storm" in cards[0]
        assert "6 finished" in cards[-1]


def test_held_out_samples_and_the_test_set_are_never_ranked_together(browser, tmp_path):
    write_run(tmp_path / "a", "fedavg", settings={"data.holdout": 0.1})
    write_run(tmp_path / "b", "mb-storm", rows=rows_of(20, speed=4.0), settings={"data.holdout": 0.1})
    with opened(browser, report_of(tmp_path)) as page:
        assert "Highest final held-out accuracy" in page.inner_text("#cards")
        assert "test accuracy" not in page.inner_text("main")
        assert "final held-out accuracy" in page.inner_text("#table thead").lower()
    write_run(tmp_path / "c", rows=rows_of(20, speed=6.0))
    with opened(browser, report_of(tmp_path)) as page:
        cards = page.inner_text("#cards")
        assert cards.index("held-out accuracy") < cards.index("mb-storm, held out") < cards.index("test accuracy")
        page.click("#table thead button:has-text('final accuracy')")
        kinds = ["held-out samples", "held-out samples", "test set"]
        assert column(page, "evaluated on") == kinds
        page.click("#table thead button:has-text('final accuracy')")
        assert column(page, "evaluated on") == kinds


def test_a_single_row_stays_below_100_percent_and_gradients_are_whole(browser, tmp_path):
    for seed in (0, 1):
        row = rows_of(1)[0] | {"test_accuracy": 0.97, "gradients": 730.25 + seed}
        write_run(tmp_path / str(seed), seed=seed, rows=[row])
    with opened(browser, report_of(tmp_path)) as page:
        page.select_option("#metric", "test_accuracy")
        assert 0.97 < page.evaluate("state.full.y[1]") < 1.01
        assert column(page, "gradients") == ["731"]


def test_the_table_sorts_by_every_column(browser, address):
    with opened(browser, address) as page:
        for place in range(page.locator("#table thead th").count()):
            head = page.locator("#table thead th").nth(place)
            head.locator("button").click()
            first = table(page)
            order = head.get_attribute("aria-sort")
            assert order == ("ascending" if place == 0 else "descending")
            head.locator("button").click()
            assert head.get_attribute("aria-sort") != order
            assert sorted(table(page)) == sorted(first)
        page.locator("#table thead th button", has_text="final accuracy").click()
        assert column(page, "line") == ["mb-storm", "scaffold-m", "fedavg"]


def test_metric_axis_and_scales_change_the_curves(browser, address):
    with opened(browser, address) as page:
        before = rows(page)
        assert [row["line"] for row in before[::20]] == ["fedavg", "mb-storm", "scaffold-m"]
        assert float(before[0]["test_accuracy"]) == pytest.approx(0.9 * (1 - 2.718281828**-0.1) + 0.0005, rel=1e-4)
        assert (before[0]["seeds"], before[0]["round"]) == ("2", "1")
        page.select_option("#metric", "test_loss")
        page.select_option("#axis", "bytes")
        first = rows(page)[0]
        assert (float(first["bytes"]), float(first["smallest"])) == (
            1500,
            pytest.approx(2.3 * 2.718281828**-0.1, rel=1e-4),
        )
        for axis in ("gradients", "seconds", "round"):
            page.select_option("#axis", axis)
            assert page.locator("#chart").get_attribute("aria-label").startswith("test loss against ")
        for box in ("#log-x", "#log-y", "#seeds"):
            page.check(box)
        text = saved(page, "svg").decode()
        assert "clip-path" in text
        for box in ("#log-x", "#log-y", "#seeds"):
            page.uncheck(box)
        for band in ("std", "none", "range"):
            page.select_option("#band", band)
        for colours in ("line", "algorithm"):
            page.select_option("#colours", colours)
        drawn = ET.fromstring(saved(page, "svg"))
        names = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert {"fedavg", "mb-storm", "scaffold-m", "rounds", "test loss"} <= set(names)
        strokes = {each.get("stroke") for each in drawn.iter("{http://www.w3.org/2000/svg}path")} - {None}
        assert strokes == {"#0072B2", "#000000", "#CC79A7"}, "the colours of the figures"
        picture = saved(page, "png")
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000


def test_lines_are_hidden_found_highlighted_and_shown_alone(browser, address):
    with opened(browser, address) as page:
        page.click("#legend button:has-text('fedavg')")
        assert {row["line"] for row in rows(page)} == {"mb-storm", "scaffold-m"}
        assert page.get_attribute("#legend button:has-text('fedavg')", "aria-pressed") == "false"
        page.click("#legend button:has-text('scaffold-m')", modifiers=["Shift"])
        assert {row["line"] for row in rows(page)} == {"scaffold-m"}
        page.click("#all")
        assert len({row["line"] for row in rows(page)}) == 3
        page.fill("#find", "storm")
        assert page.locator("#legend button").all_inner_texts() == ["mb-storm"]
        page.click("#none")
        assert {row["line"] for row in rows(page)} == {"fedavg", "scaffold-m"}
        page.click("#all")
        page.fill("#find", "")
        page.hover("#legend button:has-text('fedavg')")
        assert page.evaluate("state.highlight") == "fedavg"
        page.click("#legend button:has-text('fedavg')")
        page.click("#legend button:has-text('mb-storm')")
        page.click("#legend button:has-text('scaffold-m')")
        assert rows(page) == []


def test_the_mouse_shows_values_and_zooms(browser, address):
    with opened(browser, address) as page:
        whole = page.evaluate("view()")
        box = page.locator(".u-over").bounding_box()
        spot = page.evaluate("[state.plot.valToPos(10, 'x'), state.plot.valToPos(state.drawn[0].curve.y[9], 'y')]")
        page.mouse.move(box["x"] + spot[0], box["y"] + spot[1])
        text = page.inner_text("#tip")
        assert text.split("\n")[0] == "fedavg"
        assert "round 10" in text
        assert "56.9 % (56.9 % to 57.0 %, 2 seeds)" in text.replace("\xa0", " ")
        page.mouse.move(box["x"] + 100, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 250)
        page.mouse.up()
        zoomed = page.evaluate("view()")
        assert whole["x"][0] < zoomed["x"][0] < zoomed["x"][1] < whole["x"][1]
        assert whole["y"][0] < zoomed["y"][0] < zoomed["y"][1] < whole["y"][1]
        page.mouse.dblclick(box["x"] + 200, box["y"] + 150)
        assert page.evaluate("view()") == whole
        page.click("#zoom-in")
        assert page.evaluate("view().x[1]") < whole["x"][1]
        page.click("#zoom-out")
        page.click("#zoom-out")
        assert page.evaluate("view().x[1]") > whole["x"][1]
        page.click("#reset")
        assert page.evaluate("view()") == whole


def test_everything_works_with_the_keyboard(browser, address):
    with opened(browser, address) as page:
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#readout").startswith("fedavg, round 1: test accuracy")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#readout").startswith("mb-storm, round 2: test accuracy")
        whole = page.evaluate("view()")
        page.keyboard.press("+")
        assert page.evaluate("view().x[1]") < whole["x"][1]
        page.keyboard.press("-")
        page.keyboard.press("0")
        assert page.evaluate("view()") == whole
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Escape")
        assert page.inner_text("#readout") == ""
        page.focus("#legend button >> nth=0")
        page.keyboard.press("Enter")
        assert page.evaluate("[...state.hidden]") == ["fedavg"]
        page.keyboard.press("Shift+Tab")
        reached = set()
        page.evaluate("document.activeElement.blur()")
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert {"metric", "axis", "band", "colours", "log-x", "seeds", "chart", "find", "download", "target"} <= reached


def test_copying_reaches_the_clipboard(browser, address):
    with opened(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        read = "navigator.clipboard.readText()"
        page.select_option("#format", "csv")
        page.click("#copy")
        page.wait_for_selector("#said:has-text('Copied.')")
        assert page.evaluate(read).startswith("line,round,")
        page.click("#run-table tbody tr >> nth=1 >> button")
        page.wait_for_selector("#run-table button:has-text('Copied')")
        assert re.fullmatch(r"kedge run \S+/fedavg-1/config\.toml --out again", page.evaluate(read))
        page.select_option("#format", "png")
        page.evaluate("document.getElementById('said').textContent = ''")
        page.click("#copy")
        page.wait_for_selector("#said:has-text('Copied.')")
        kinds = page.evaluate("navigator.clipboard.read().then((items) => items[0].types)")
        assert kinds == ["image/png"]


def test_clients_data_settings_and_environment_are_shown(browser, address):
    with opened(browser, address) as page:
        assert page.locator(".bar").count() == 3
        assert "80.0 %, 70.0 %" in page.inner_text("#client-bars").replace("\xa0", " ")
        assert page.locator("#picture circle").count() > 10
        assert "client 0, label" in page.locator("#picture circle title").first.text_content()
        assert page.locator("#partition option").all_inner_texts() == ["digits, dirichlet, 8 clients, seed 0"]
        page.select_option("#partition", index=0)
        assert "algorithm.name" in page.inner_text("#apart")
        page.click("#common summary")
        assert "data.dataset" in page.inner_text("#common")
        page.click("summary:has-text('Mouse')")
        assert "6 of 6 runs" in page.inner_text("#versions")
        assert "torch" in page.inner_text("#versions")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_problem(browser, address, scheme):
    with opened(browser, address, color_scheme=scheme) as page:
        page.click("#common summary")
        assert serious(page) == []


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, address):
    with opened(browser, address, viewport={"width": 360, "height": 740}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("state.plot.width") <= 360
        assert serious(page) == []


def test_in_print_the_chart_is_drawn_on_white_even_in_dark_mode(browser, address):
    with opened(browser, address, color_scheme="dark") as page:
        middle = "colourOf(report.lines[1])"
        assert page.evaluate(middle) == "#f2f2f2"
        assert page.evaluate(f"(window.dispatchEvent(new Event('beforeprint')), {middle})") == "#000000"
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(middle) == "#f2f2f2"
        assert page.pdf().startswith(b"%PDF")


def test_hostile_runs_are_shown_as_text(browser, tmp_path):
    write_run(
        tmp_path / "a", "x.py:" + EVIL[:36], settings={f"run.{EVIL}": EVIL, "data.dataset": EVIL}, engine="<b>e</b>"
    )
    odd = [row | {EVIL: float("nan") if row["round"] % 2 else 1.0} for row in rows_of(9)]
    write_run(tmp_path / "b", settings={f"run.{EVIL}": "<i>"}, rows=odd)
    huge = [row | {"test_loss": 1e308 * (-1) ** row["round"], "own": 9e99 * (row["round"] - 5)} for row in rows_of(9)]
    write_run(tmp_path / "huge", rows=[row | {"tiny": 5e-324, "flat": 1.0} for row in huge])
    write_run(tmp_path / "c <u>", rows=[], ended=False)
    write_run(tmp_path / "d", config=False, ended=False, rows=rows_of(1))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.toml").write_text("[run\n")
    with opened(browser, report_of(tmp_path)) as page:
        for metric in page.evaluate("report.metrics"):
            page.select_option("#metric", metric)
            page.check("#log-y")
            page.uncheck("#log-y")
            page.click("#zoom-in")
        assert page.locator("img, i, b, u, main script").count() == 0
        assert page.title().endswith("kedge")
        for name in page.locator("#table thead th button").all():
            name.click()
        assert EVIL[:30] in page.inner_text("#legend")
        assert "cannot be read" in page.inner_text("#run-table")
        page.click("#download")
        assert serious(page) == []


def test_a_run_of_many_rows_and_many_lines_is_drawn(browser, tmp_path):
    for place in range(130):
        write_run(tmp_path / f"{place:03}", settings={"algorithm.eta": place / 7}, rows=rows_of(3, seed=place))
    write_run(tmp_path / "long", "fedavg", rows=rows_of(30_000, speed=5000.0))
    with opened(browser, report_of(tmp_path)) as page:
        assert page.locator("#table tbody tr").count() == 100
        page.click("#more")
        assert page.locator("#table tbody tr").count() == 131
        page.click("#more-runs")
        assert page.locator("#run-table tbody tr").count() == 131
        assert page.evaluate("report.runs.at(-1).columns.round.length") == 600
        assert "at most 600 points" in page.inner_text("#notes")


def test_a_thousand_runs_of_a_thousand_rows_are_painted_within_three_seconds(browser, tmp_path):
    rows, summary = rows_of(1000, speed=100.0), {"engine": "", "versions": {}}
    runs = [
        StoredRun(tmp_path / str(place), {"algorithm": {"name": "fedavg", "eta": place / 8}}, rows, summary)
        for place in range(1000)
    ]
    lines = lines_of(runs)
    assert len(lines) == 1000
    write_report(lines, tmp_path / "page.html", "many", "")
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert painted < 3000
        assert page.evaluate("state.drawn.length") == 1000
        page.select_option("#metric", "test_loss")
        page.fill("#find", "eta 124.875")
        assert page.locator("#legend button").all_inner_texts() == ["fedavg, eta 124.875"]
