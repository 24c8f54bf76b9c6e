"""Render the report's page: one HTML file with style, scripts and data inside, which opens without a network.

Templates, style and script are in report/page/. Vega-Lite (Satyanarayan et al. 2017) draws the charts.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tpulm.report import data_section, result_section
from tpulm.report.curves import final_scores, losses_of
from tpulm.report.sources import STYLES, Sources, as_script, format_number

SECTIONS = {
    "summary": "Summary",
    "text": "Text",
    "tokenizer": "Tokenizer",
    "records": "Records",
    "training": "Training",
    "quality": "Quality",
    "samples": "Samples",
    "runs": "Runs compared",
    "plan": "Plan",
    "partitioning": "Partitioning",
    "jobs": "Jobs and cost",
}


@cache
def vega() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed from vl-convert, a module that sets window.vegaEmbed."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;")


# A key of the config, with its value if there is one.
KEY = re.compile(r"(?<![\w./-])[a-z]\w*(?:\.[\w-]+|_\w+)+(?:: [\w.-]*\w)?")


def with_keys(sentence: str) -> Markup:
    """Return a sentence as HTML, with keys of the config and their values as code."""
    return Markup(KEY.sub(r"<code>\g<0></code>", str(escape(sentence))))


def always_empty(recipe: Mapping[str, Any]) -> set[str]:
    """Return the sections that no result of this config fills, which the page leaves out."""
    stages = [run["stage"] for run in recipe["runs"]]
    filled = {"runs": len(stages) > len(set(stages)), "partitioning": "finetune" in stages}
    return {name for name, has_content in filled.items() if not has_content}


def sections(recipe: Mapping[str, Any], sources: Sources, templates: Path) -> list[dict[str, Any]]:
    """Return the sections of the page: id, title, html, and version, a hash of the html.

    recipe     from tpulm.config.report
    sources    files of the page, jobs.json among them; missing files are left out
    templates  the folder report/page
    """
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: partial(format_number, name) for name in STYLES} | {"with_keys": with_keys}
    environment.tests["older"] = sources.older
    environment.globals |= {"as_script": as_script, "bar": data_section.bar, "linked": sources.linked}
    runs = result_section.describe_runs(recipe, sources)
    texts = data_section.texts(recipe, sources)
    scores, losses = final_scores(runs, sources), losses_of(runs, sources)
    contexts: dict[str, dict[str, Any]] = {
        "summary": result_section.summary(runs, scores, losses, sources) | {"texts": texts},
        "text": {"texts": texts},
        "tokenizer": data_section.tokenizer(sources),
        "records": data_section.records(sources),
        "training": result_section.training(runs, sources),
        "quality": result_section.quality(runs, scores, losses, sources),
        "samples": {
            "masks": data_section.masks(sources),
            "generations": data_section.generations(sources),
            "responses": data_section.responses(sources),
            "demo": result_section.demo(recipe, runs),
        },
        "runs": result_section.compared_runs(sources),
        "plan": result_section.plans(runs, sources),
        "partitioning": data_section.partitioning(sources),
        "jobs": result_section.jobs(recipe, sources),
    }
    rendered = []
    for name, title in SECTIONS.items():
        if name in always_empty(recipe):
            continue
        html = environment.get_template(f"{name}.html").render(contexts[name])
        version = hashlib.sha256(html.encode()).hexdigest()[:16]
        rendered.append({"id": name, "title": title, "html": Markup(html), "version": version})
    return rendered


def page(recipe: Mapping[str, Any], sources: Sources, templates: Path, live: str = "") -> str:
    """Return the page as HTML; see `sections`.

    live  URL from which the page fetches changed sections while the workflow runs; empty for a static page
    """
    environment = Environment(loader=FileSystemLoader(templates), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        title=recipe["title"],
        sections=sections(recipe, sources, templates),
        style=Markup((templates / "page.css").read_text(encoding="utf-8")),
        script=Markup((templates / "page.js").read_text(encoding="utf-8")),
        charts=Markup(vega().replace("</script", "<\\/script")),
        live=live,
    )
