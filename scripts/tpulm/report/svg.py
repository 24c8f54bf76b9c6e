"""Draw Vega-Lite specifications as SVG: in files, and on the page, where a figure needs no script.

On the page, colors are those of report/page/page.css, light or dark. Most figures are there twice, wide and narrow:
text that is scaled down to the width of a phone cannot be read.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from tpulm.core.files import atomic_write

CONFIG = {
    "font": "Liberation Sans",  # part of vl-convert: a figure is the same on every machine
    "background": "white",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e4e7eb", "domainColor": "#9aa5b1", "labelColor": "#52606d", "titleColor": "#52606d"},
    "axisY": {"labelLimit": 220},
    "legend": {"orient": "top", "labelLimit": 400, "symbolType": "stroke", "symbolStrokeWidth": 2},
    "range": {"category": ["#2f6fb0", "#d1701f"]},
    "title": {"anchor": "start"},
}


def save_svg(spec: dict[str, Any], path: str) -> None:
    """Render a Vega-Lite specification and write it as SVG."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg({"width": 620, **spec}, config=CONFIG)
    with atomic_write(path) as partial:
        partial.write_text(svg, encoding="utf-8")


WIDE, NARROW, HALF = 930, 340, 430  # pixels
# Parts of the SVG that the page does not need: the font, roles of single marks, default values, and empty paths.
UNUSED = re.compile(
    r' (?:role|aria-[a-z]+|pointer-events|font-family|xmlns:xlink|version|stroke-miterlimit)="[^"]*"'
    r'| (?:opacity|stroke-width)="1"|<path class="\w+ground"[^>]* d="(?:M0,0h0v0h0Z)?"[^>]*/>'
)
MARK = re.compile(r'<(path|line) aria-label="([^"]*)"([^>]*)/>')
PLACE = re.compile(r' (?:d|transform|x2|y2)="[^"]*"')


@lru_cache(maxsize=256)
def drawn(spec: str, look: str, width: int) -> str:
    """Return a small SVG of a specification, with what Vega says of a mark as its title."""
    import vl_convert

    config, panels = json.loads(look), '"vconcat"' in spec
    config["axisY"] = {"labelLimit": max(110, width // 4)}
    config["legend"] |= {"labelLimit": width // 3, "columns": max(2, width // 190)}
    size = {} if panels else {"height": 190, "width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
    svg = vl_convert.vegalite_to_svg(size | json.loads(spec), config=config | {"aria": not panels})
    svg = UNUSED.sub("", MARK.sub(r"<\1\3><title>\2</title></\1>", svg))
    return PLACE.sub(lambda found: re.sub(r"\d+\.\d{2,}", lambda long: f"{float(long[0]):.1f}", found[0]), svg)


def figure(look: str, spec: Mapping[str, Any], label: str, width: int) -> Markup:
    """Return a specification as SVG of this width for the page.

    look   Vega-Lite's config as JSON: report/page/figures.json
    label  for readers who do not see the figure
    """
    svg = drawn(json.dumps(spec), look, width)
    return Markup(svg.replace('class="marks"', f'role="img" aria-label="{escape(label)}"', 1))
