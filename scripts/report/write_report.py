"""Write the report's page, one HTML file that opens without a network, and the account of its jobs.

input.results     files of the page below results/
input.plans       results/plan/{planned}/{topology}.json that exist
input.scores      scores.json of every evaluation
input.history     each run and earlier runs of its name, see scripts/archive/keep_run.py
input.templates   templates, style and script of the page
output.page       HTML
output.jobs       jobs.json, see tpulm.report.jobs.account
output.verdicts   verdicts.json: label, sentence and warning, see tpulm.report.verdicts
"""

from dataclasses import asdict
from pathlib import Path

from tpulm.core.experiments import from_workflow
from tpulm.core.files import write_json, write_text
from tpulm.core.job import job
from tpulm.core.job_record import known_jobs
from tpulm.report.curves import final_scores
from tpulm.report.jobs import account
from tpulm.report.page import page
from tpulm.report.result_section import demo, describe_runs, next_run
from tpulm.report.sources import Sources
from tpulm.report.verdicts import verdicts

with job(snakemake.log[0], "report") as say:
    recipe = snakemake.params.recipe
    files = [file for kind in ("results", "plans", "scores", "history") for file in snakemake.input[kind]]
    results = Path(snakemake.output.page).parent
    sources = Sources({Path(file).relative_to(results).as_posix(): Path(file) for file in files})
    # Logs of live metrics are no artifacts, and exist only on machines on which runs were trained.
    sources.files |= {run["log"]: Path(run["log"]) for run in recipe["runs"] if Path(run["log"]).is_file()}
    write_json(snakemake.output.jobs, account(files, recipe, known_jobs()))
    sources.files["jobs.json"] = Path(snakemake.output.jobs)
    runs = describe_runs(recipe, sources)
    all_verdicts = verdicts(runs, final_scores(runs, sources), sources)
    write_json(snakemake.output.verdicts, [asdict(verdict) for verdict in all_verdicts])
    for verdict in all_verdicts:
        say(f"{verdict.label}: {'WARNING: ' if verdict.warning else ''}{verdict.sentence}")
    if all_verdicts and (after := next_run(recipe)):
        say(f"to follow a verdict, edit {after[0]}, then type: {after[1]}")
    text = page(recipe, sources, Path(snakemake.input.templates[0]).parent)
    write_text(snakemake.output.page, text)
    say(f"{from_workflow(snakemake.output.page)}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
    local_runs = [run for run in runs if (results / run["folder"]).is_dir()]
    if command := demo(recipe, local_runs):
        say(f"try models: {command}")
