"""Print the provenance of a result, back to the text, as a tree: rule, params, inputs, time and host.

    python tools/provenance.py results/mlm/tiny/metrics.json
    python tools/provenance.py results/mlm/tiny/metrics.json --from results/archive/models-1.zip

It reads the entries of jobs in a working folder or an archive: it takes no lock and builds nothing. If many jobs
have the same rule, it shows the first few; --all shows each.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.core.errors import UserError  # noqa: E402
from tpulm.core.experiments import add_directory, enter  # noqa: E402
from tpulm.release.provenance import provenance  # noqa: E402


def main() -> None:
    """Print the tree of the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a file that the workflow wrote, such as results/mlm/tiny/metrics.json")
    parser.add_argument("--from", dest="place", type=Path, default=Path(), help="an archive, or a working folder")
    parser.add_argument("--all", action="store_true", help="print every job, including thousands of similar ones")
    add_directory(parser)
    asked = parser.parse_args()
    try:
        enter(asked)
        for line in provenance(asked.file, asked.place, asked.all):
            print(line)
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:
        # What reads has enough; Python would say so when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
