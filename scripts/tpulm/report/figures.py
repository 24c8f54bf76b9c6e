"""Figures of Snakemake's report: Vega-Lite specifications (Satyanarayan et al. 2017), drawn as SVG."""

from typing import Any

from tpulm.core.files import atomic_write

LIGHT, BLUE, ORANGE, GREY = "#c1d4e7", "#2f6fb0", "#d1701f", "#8a94a0"
NUMBER = {"type": "quantitative"}
CONFIG = {
    "font": "Liberation Sans",  # which vl-convert brings: a figure is the same on every machine
    "background": "white",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e4e7eb", "domainColor": "#9aa5b1", "labelColor": "#52606d", "titleColor": "#52606d"},
    "legend": {"orient": "top", "labelLimit": 400, "symbolType": "stroke", "symbolStrokeWidth": 2},
    "title": {"anchor": "start"},
}


def save(spec: dict[str, Any], path: str) -> None:
    """Draw a Vega-Lite specification and write it as SVG, whole or not at all."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg({"width": 620, **spec}, config=CONFIG)
    with atomic_write(path) as partial:
        partial.write_text(svg, encoding="utf-8")
