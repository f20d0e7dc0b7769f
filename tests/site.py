"""Look at the built site in a real browser, without network.

    make site && python -m tests.site

opens every page from disk in headless Chromium: no page may ask for anything that is not on the disk, write an error to
the console, or show a formula that KaTeX cannot read; the search must find an algorithm.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, Request, sync_playwright

SITE = Path(__file__).parents[1] / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOCAL = ("file:", "data:", "blob:")


def problems(browser: str) -> list[str]:
    """Return what is wrong with the site, one sentence each."""
    found: list[str] = []
    pages = sorted(set(SITE.rglob("*.html")) - {SITE / "404.html"})  # which only a server shows
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page()
        page.on(
            "console", lambda message: found.append(f"{page.url}: {message.text}") if message.type == "error" else None
        )
        page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
        page.on("request", lambda request: found.extend(_foreign(page, request)))
        formulas = sum(_look(page, file, found) for file in pages)
        found += _search(page)
        chromium.close()
    print(f"{len(pages)} pages, {formulas} formulas")
    return found if len(pages) > 40 and formulas > 300 else [*found, "there are too few pages or formulas"]


def _foreign(page: Page, request: Request) -> list[str]:
    return [] if request.url.startswith(LOCAL) else [f"{page.url} asks for {request.url}"]


def _look(page: Page, file: Path, found: list[str]) -> int:
    """Open a page; return how many formulas it shows."""
    page.goto(file.as_uri())
    found += [f"{file.name} cannot show {text}" for text in page.locator(".katex-error").all_inner_texts()]
    waiting = page.locator(".arithmatex:not(:has(.katex))").count()
    found += [f"{file.name} leaves {waiting} formulas as they are"] if waiting else []
    return page.locator(".katex").count()


def _search(page: Page) -> list[str]:
    page.goto((SITE / "index.html").as_uri())
    page.locator("input.md-search__input").fill("SCAFFOLD-M-VR")
    hit = page.locator("a.md-search-result__link").first
    hit.wait_for(timeout=20_000)
    hit.click()
    page.wait_for_load_state()
    return [] if "scaffold-m-vr" in page.url else [f"the search for SCAFFOLD-M-VR leads to {page.url}"]


if __name__ == "__main__":
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(print(f"nobody looked at the site: none of {', '.join(BROWSERS)} is installed"))
    sentences = problems(browser)
    print("\n".join(sentences), file=sys.stderr)
    sys.exit(1 if sentences else 0)
