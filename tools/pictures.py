"""Write the pictures of the documentation: the report of the example run, and the page to type into its models.

    python tools/pictures.py

`make pictures` runs the example run first. Needs Chromium on this machine and the packages of the tests.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPORT = Path("results/report.html")
PICTURES = ROOT / "report" / "pictures"
LARGEST = 150_000  # bytes of a picture
COLORS = 64
WIDE, PHONE = {"width": 1240, "height": 900}, {"width": 390, "height": 844}
DEMOS = {"demo": (WIDE, "light"), "demo-dark": (WIDE, "dark"), "demo-phone": (PHONE, "light")}


@contextmanager
def demo() -> Iterator[str]:
    """Yield the address of the page of tools/demo.py, of all models of the example run."""
    process = subprocess.Popen([sys.executable, ROOT / "tools" / "demo.py"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def type_into(page: Any) -> None:
    """Have the masked and the causal models answer, and show what else the finetuned one might have said."""
    for kind in ("masked", "causal"):
        form = page.locator(f"form[data-kind={kind}]")
        if kind == "causal":
            form.locator("textarea").first.fill("def ")  # what the finetuned model has learned
        form.locator("button[type=submit]").click()
        form.locator(".reply:not([aria-busy])").last.wait_for(timeout=120_000)
        form.locator("button[type=submit]:not(:disabled)").wait_for(timeout=120_000)
    form.locator(".reply").last.locator(".token").nth(3).focus()
    form.evaluate("form => form.scrollIntoView()")


def save(page: Any, name: str) -> None:
    """Write what the page shows, in few colors."""
    from PIL import Image

    picture = PICTURES / f"{name}.png"
    page.screenshot(path=picture)
    Image.open(picture).convert("RGB").quantize(COLORS).save(picture, optimize=True)
    size = picture.stat().st_size
    if size > LARGEST:
        sys.exit(f"error: {picture} has {size:,} bytes; at most {LARGEST:,} are allowed.")
    print(f"{picture}: {size:,} bytes")


def main() -> None:
    """Write the pictures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser or not REPORT.is_file():
        sys.exit(f"error: {'Chromium is not installed' if not browser else f'{REPORT} does not exist'}.")
    with sync_playwright() as playwright, demo() as address:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = opened.new_page(viewport=WIDE, color_scheme="light")
        page.goto(REPORT.resolve().as_uri())
        save(page, "summary")
        for name, (viewport, scheme) in DEMOS.items():
            page = opened.new_page(viewport=viewport, color_scheme=scheme)
            page.goto(address)
            type_into(page)
            save(page, name)
        opened.close()


if __name__ == "__main__":
    main()
