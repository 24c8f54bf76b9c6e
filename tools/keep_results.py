"""Keep results although the code or the packages that made them have changed.

    python tools/keep_results.py
    python tools/keep_results.py mlm -d experiments/sums

Takes targets and options as snakemake does. It lists and keeps the jobs that are stale for no other reason: they
count as up to date until their code changes again. Only Snakemake's metadata changes: no result, no date, no record of
a job. A job that is stale for another reason stays stale.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from snakemake.cli import main as snakemake  # noqa: E402
from tpulm.workflow.keeping import KEEP  # noqa: E402

if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv[1:]}:
        sys.exit(__doc__)
    os.environ[KEEP] = "1"
    snakemake(["--dry-run", *sys.argv[1:]])
