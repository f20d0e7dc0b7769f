"""A headless Chromium for the tests: one for all of them, and a fresh page for each."""

import shutil
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
AXE = Path(__file__).parent / "axe" / "axe.min.js"


@contextmanager
def chromium():
    """Start the browser."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, address, **options):
    """Open a page that must not report an error or ask for anything from elsewhere."""
    context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
    page = context.new_page()
    page.set_default_timeout(10_000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(address)
        page.wait_for_selector("body[data-ready=true]")
        yield page
        own = address.partition("?")[0].rpartition("/")[0]
        assert not said
        assert not [url for url in asked if not url.startswith((own, "blob:", "data:"))]
    finally:
        context.close()


def serious(page):
    """Return the serious accessibility problems that axe-core finds."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # past the page's policy, as a developer's tools
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found["violations"] if each["impact"] in ("serious", "critical")
    ]  # fmt: skip
