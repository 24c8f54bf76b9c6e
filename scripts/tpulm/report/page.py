"""Render the report's page: one HTML file with style, figures and script inside, which opens without a network.

Templates, style and script are in report/page/. Without the script, the page shows the same.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tpulm.report import data_section, result_section, svg
from tpulm.report.curves import final_scores, losses_of
from tpulm.report.sources import STYLES, Sources, as_script, format_number

# Titles of the sections, and what fills them: a section with nothing of it is left out.
SECTIONS = {
    "summary": ("Summary", "totals"),
    "text": ("Text", "texts"),
    "tokenizer": ("Tokenizer", "measured"),
    "records": ("Records", "sets"),
    "training": ("Training", "curves"),
    "quality": ("Quality", "losses", "charts", "over_tokens"),
    "samples": ("Samples", "masks", "continuations", "generations", "responses"),
    "runs": ("Runs compared", "groups"),
    "plan": ("Plan", "rows"),
    "partitioning": ("Partitioning", "runs"),
    "jobs": ("Jobs and cost", "jobs"),
}


# A key of the config, with its value if there is one.
KEY = re.compile(r"(?<![\w./-])[a-z]\w*(?:\.[\w-]+|_\w+)+(?:: [\w.-]*\w)?")


def with_keys(sentence: str) -> Markup:
    """Return a sentence as HTML, with keys of the config and their values as code."""
    return Markup(KEY.sub(r"<code>\g<0></code>", str(escape(sentence))))


def sections(recipe: Mapping[str, Any], sources: Sources, templates: Path) -> list[dict[str, Any]]:
    """Return the sections of the page that have content: id, title, html, and version, a hash of the html.

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
    draw = partial(svg.figure, (templates / "figures.json").read_text(encoding="utf-8"))
    environment.globals |= {"draw": draw, "widths": {"wide": svg.WIDE, "narrow": svg.NARROW, "half": svg.HALF}}
    runs = result_section.describe_runs(recipe, sources)
    texts = data_section.texts(recipe, sources)
    scores, losses = final_scores(runs, sources), losses_of(runs, sources)
    contexts: dict[str, dict[str, Any]] = {
        "summary": result_section.summary(runs, scores, losses, sources)
        | {"texts": texts, "next_run": result_section.next_run(recipe)},
        "text": {"texts": texts},
        "tokenizer": data_section.tokenizer(sources),
        "records": data_section.records(sources),
        "training": result_section.training(runs, sources),
        "quality": result_section.quality(runs, scores, losses, sources),
        "samples": {
            "masks": data_section.masks(sources),
            "continuations": data_section.continuations(sources),
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
    for name, (title, *filled) in SECTIONS.items():
        if not any(contexts[name].get(key) for key in filled):
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
        live=live,
    )
