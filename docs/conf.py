"""Sphinx's settings for the documentation. `make docs` builds it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

project = "Language models on TPUs with Snakemake"
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
