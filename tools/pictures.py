"""Write the picture of README.md: the first screen of results/report.html.

    python tools/pictures.py

`make pictures` runs the embedded job first. Needs Chromium on this machine and the packages of the tests.
"""

import os
import shutil
import sys
from pathlib import Path

REPORT = Path("results/report.html")
PICTURE = Path(__file__).resolve().parents[1] / "report" / "pictures" / "summary.png"
LARGEST = 150_000  # bytes
COLORS = 64


def main() -> None:
    """Write report/pictures/summary.png."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser or not REPORT.is_file():
        sys.exit(f"error: {'Chromium is not installed' if not browser else f'{REPORT} does not exist'}.")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = opened.new_page(viewport={"width": 1240, "height": 900}, color_scheme="light")
        page.goto(REPORT.resolve().as_uri())
        page.screenshot(path=PICTURE)
        opened.close()
    Image.open(PICTURE).convert("RGB").quantize(COLORS).save(PICTURE, optimize=True)
    size = PICTURE.stat().st_size
    if size > LARGEST:
        sys.exit(f"error: {PICTURE} has {size:,} bytes; at most {LARGEST:,} are allowed.")
    print(f"{PICTURE}: {size:,} bytes")


if __name__ == "__main__":
    main()
