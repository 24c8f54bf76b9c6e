"""Sphinx's settings for the documentation. `make docs` builds it."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

project = "tpulm"
author = "the authors"
release = re.search(r"^version: (\S+)$", CITATION, re.M)[1]
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
html_title = project
html_static_path, html_css_files = ["static"], ["tables.css"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # a notebook does the whole example run; the tests execute it
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "END"

# Links name files of the repository, so that they also work where a forge shows a page. In the built pages, they lead
# to the pages that are made of these files.
MADE_OF = {
    "schemas/config.schema.yaml": "reference/config.md",
    "profiles/slurm/README.md": "guides/slurm.md",
    "profiles/tpu-vm/README.md": "guides/tpu-vms.md",
    "profiles/gke/README.md": "guides/gke.md",
    "profiles/gcs/README.md": "guides/buckets.md",
    "ARCHITECTURE.md": "development/architecture.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "benchmarks/results/data.md": "benchmarks/index.md#data-preparation",
    "benchmarks/results/vocabularies.md": "benchmarks/index.md#vocabularies",
    "benchmarks/results/vocabularies-2gb.md": "benchmarks/index.md#vocabularies",
    "benchmarks/results/steps.md": "benchmarks/index.md#training-steps",
    "benchmarks/results/plan_table.md": "benchmarks/index.md#estimates-of-plans",
    "benchmarks/results/gpu.md": "benchmarks/index.md#training-on-a-gpu",
    "benchmarks/results/utilisation.md": "benchmarks/index.md#utilisation-of-a-tpu",
    "benchmarks/results/recipes.md": "benchmarks/index.md#plans-of-the-recipes",
}
LINK = re.compile(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, MADE_OF))})(?=[)#])")


def to_pages(app: Any, *read: Any) -> None:
    """Replace the files that links name by their pages; the text of a page is the last argument."""
    text = LINK.sub(lambda found: f"](/{MADE_OF[found[1]]}", read[-1][0])
    read[-1][0] = text.replace("](docs/", "](/")  # in ARCHITECTURE.md and CONTRIBUTING.md


def setup(app: Any) -> None:
    """Have links replaced in every page, and in every file that a page includes."""
    app.connect("source-read", to_pages)
    app.connect("include-read", to_pages)
