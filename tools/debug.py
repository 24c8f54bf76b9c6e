"""Debug the script that writes a file of results/: run it without Snakemake.

    python tools/debug.py results/tfrecords/train/00000-of-00004.tfrecord
    python tools/debug.py results/mlm/tiny/metrics.json --pdb --configfile my.yaml

The script gets the inputs, params, wildcards and threads of its rule; the inputs must exist. It writes to the folder
debug/, not to results/, and prints to the terminal, so that `breakpoint()` works. With --pdb, an error opens the
debugger where it was raised. The tool takes no lock and builds nothing else.
"""

import argparse
import os
import pdb
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from snakemake.api import OutputSettings, SnakemakeApi
from snakemake.settings.types import Quietness

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.compat.snakemake import job_of, script_object, workflow_of  # noqa: E402
from tpulm.core.errors import UserError  # noqa: E402
from tpulm.core.experiments import add_directory, enter  # noqa: E402
from tpulm.core.job import TERMINAL  # noqa: E402

DEBUG = Path("debug")


def beside(path: str) -> str:
    """Return where an output or a log goes instead of its place, with its folder made."""
    target = DEBUG / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return str(target)


def run(job: Any) -> None:
    """Run a job's script in this process, its outputs and log below the folder debug/."""
    given = script_object(job, beside)
    os.environ[TERMINAL] = "1"
    runpy.run_path(str(script_of(job)), init_globals={"snakemake": given})


def script_of(job: Any) -> Path:
    """Return the script of a job's rule."""
    return Path(os.path.relpath(ROOT / "rules" / job.rule.script))


def main() -> None:
    """Run the script of the job that makes the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="an output of a rule, such as results/tokenizer/tokenizer.json")
    add_directory(parser)
    parser.add_argument("--configfile", type=Path, nargs="*", default=[], help="as for snakemake")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="as for snakemake")
    parser.add_argument("--pdb", action="store_true", help="open the debugger on an error")
    asked = parser.parse_args()
    try:
        enter(asked)
    except UserError as error:
        sys.exit(f"error: {error}")
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        for path in asked.configfile:
            if not path.is_file():
                sys.exit(f"error: --configfile is {path}, which does not exist.")
        job = job_of(workflow_of(api, ROOT / "Snakefile", asked.configfile, asked.cores), asked.file)
        if job is None:
            sys.exit(f"error: no rule makes {asked.file}; `snakemake --summary` lists the files of the config.")
        absent = [str(file) for file in job.input if not os.path.exists(file)]
        if absent:
            sys.exit(f"error: {absent[0]}, an input of rule {job.rule.name}, does not exist: run snakemake {absent[0]}")
        print(f"rule {job.rule.name}, {script_of(job)}; outputs and log: {DEBUG}/")
        try:
            run(job)
        except Exception:
            if not asked.pdb:
                raise
            traceback.print_exc()
            pdb.post_mortem()


if __name__ == "__main__":
    main()
