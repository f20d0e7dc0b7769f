"""What a large report costs: `python -m benchmarks.reports` writes runs by hand, reports on them and opens the page."""

import argparse
import tempfile
import time
from pathlib import Path

from kedge.report.lines import lines_of, runs_of
from kedge.report.page import write_report
from tests.report.browser import chromium, opened
from tests.report.made import rows_of, write_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name) / "runs", Path(name) / "page.html"
        for place in range(options.runs):
            rows = rows_of(options.rows, seed=place % 7, speed=options.rows / (5 + place % 11))
            write_run(folder / f"{place:05}", rows=rows, settings={"algorithm.eta": place / 8})
        began = time.process_time()
        lines = lines_of(runs_of([folder]))
        read = time.process_time() - began
        size = write_report(lines, page, "large", "")
        print(f"{options.runs} runs of {options.rows} rows: {read:.1f} s of processor time to read them, ", end="")
        print(f"{time.process_time() - began - read:.1f} s to write {size / 1e6:.1f} MB")
        with chromium() as browser, opened(browser, page.as_uri()) as shown:
            paint = shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            ready = shown.evaluate("performance.now()")
            print(f"first paint after {paint / 1000:.2f} s; complete within {ready / 1000:.2f} s")


if __name__ == "__main__":
    main()
