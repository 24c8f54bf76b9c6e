"""Write the report's page: one HTML file that opens without a network, and what the jobs behind it took.

input      what the page tells of, each file below results/; absent where the config has none
input.templates   templates, style and script of the page
input.code  modules and lock
output.page   HTML
output.jobs   jobs.json: see tpulm.report.jobs.account
"""

from pathlib import Path

from tpulm.core.files import write_json, write_text
from tpulm.core.job import job
from tpulm.report.jobs import account
from tpulm.report.page import page
from tpulm.report.sources import Sources, devices_of, named

with job(snakemake.log[0], "report") as say:
    recipe = snakemake.params.recipe
    sources = Sources(named(snakemake.input.results))
    # The logs of live metrics are no artifacts; only a machine on which runs were trained has them.
    sources.files |= {run["log"]: Path(run["log"]) for run in recipe["runs"] if Path(run["log"]).is_file()}
    write_json(snakemake.output.jobs, account(snakemake.input.results, recipe, devices_of(recipe, sources)))
    sources.files["jobs.json"] = Path(snakemake.output.jobs)
    text = page(recipe, sources, Path(snakemake.input.templates[0]).parent)
    write_text(snakemake.output.page, text)
    say(f"{snakemake.output.page}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
