"""Snakemake's summary of every output of the config."""

import csv
import json
import subprocess
import sys

from tpulm.core import bucket
from tpulm.core.errors import UserError


def summary(arguments: dict, targets: list[str]) -> list[dict[str, str]]:
    """Return the rows of `snakemake TARGETS --summary`: output_file, status, plan and more, for each output.

    arguments  snakefile, configfiles and config, as given to this Snakemake; profile, what makes a job stale;
               results, where they are
    Raises UserError when Snakemake cannot say.
    """
    command = [sys.executable, "-m", "snakemake", *targets, "--summary", "--snakefile", arguments["snakefile"]]
    command += ["--workflow-profile", arguments["profile"]]
    if arguments["configfiles"]:
        command += ["--configfile", *arguments["configfiles"]]
    if arguments["config"]:
        command += ["--config", *(f"{key}={json.dumps(value)}" for key, value in arguments["config"].items())]
    if bucket.remote(arguments["results"]):
        prefix = arguments["results"].removesuffix("/results")
        command += ["--default-storage-provider", "gcs", "--default-storage-prefix", prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("output_file\t")), None)
    if done.returncode or start is None:
        raise UserError(f"Snakemake could not list what the config needs: {(done.stderr.strip() or '?')[-300:]}")
    return list(csv.DictReader(lines[start:], delimiter="\t"))
