"""Write the two pictures of README.md: the first screen of results/report.html, and its curves.

    python tools/pictures.py

`make pictures` runs the embedded job first. Needs Chromium on this machine and the packages of the tests.
"""

import os
import shutil
import sys
from pathlib import Path

REPORT = Path("results/report.html")
FOLDER = Path(__file__).resolve().parents[1] / "report" / "pictures"
LARGEST = 300_000  # bytes of both
COLORS = 64  # of each picture


def main() -> None:
    """Write report/pictures/{summary,training}.png."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser or not REPORT.is_file():
        sys.exit(f"error: {'Chromium is not installed' if not browser else f'{REPORT} does not exist'}.")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = opened.new_page(viewport={"width": 1240, "height": 760}, color_scheme="light")
        page.goto(REPORT.resolve().as_uri())
        page.screenshot(path=FOLDER / "summary.png")
        page.locator("#curves .plot").scroll_into_view_if_needed()
        page.locator("#curves svg").wait_for()
        page.locator("#training").screenshot(path=FOLDER / "training.png")
        opened.close()
    for path in FOLDER.glob("*.png"):
        Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)
    sizes = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    if sizes > LARGEST:
        sys.exit(f"error: the pictures have {sizes:,} bytes; at most {LARGEST:,} are allowed.")
    print(f"{FOLDER}: {sizes:,} bytes")


if __name__ == "__main__":
    main()
