"""Write a short config for a text, which trains a masked and a causal language model on it.

    python tools/new_config.py PATH... > my.yaml                       small models, minutes on two CPU cores
    python tools/new_config.py PATH... --accelerator v5e-8 > my.yaml   models and batches for this accelerator

PATH is a file, a folder, a glob, or a dataset hf://OWNER/NAME. Standard error has what was found and chosen, and times.
"""

import argparse
import os
import sys
from pathlib import Path

# Runs have one thread, so the speed of one thread is measured. numpy reads this when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tools")]

try:
    from newconfig.sample import look
    from newconfig.sizes import estimate
    from newconfig.writing import config_of
    from ruamel.yaml import YAML
    from tpulm.config.reading import complete
    from tpulm.core.errors import UserError
    from tpulm.corpus.sources import ALLOWED, parts_of
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")


def main() -> None:
    """Print the config of the text that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="+", help=f"{ALLOWED}; a folder; a glob; hf://OWNER/NAME")
    parser.add_argument("--accelerator", help="a TPU slice such as v5e-8, or GPUs such as h100:4; default: CPUs")
    asked = parser.parse_args()
    try:
        text = look(asked.paths)
        written = config_of(text, asked.paths, asked.accelerator)
        config = complete(YAML(typ="safe", pure=True).load(written), "the config")
        parts_of("corpus", config["corpus"])  # its globs find the files
    except UserError as error:
        sys.exit(f"error: {error}")
    time = "`snakemake plan --configfile my.yaml` compiles the runs and estimates memory and time."
    if not config["plan"]["topologies"]:
        time = "none, because only TPUs have plans." if asked.accelerator else estimate(config)
    said = [f"found: {text.found}", *(f"note: {note}." for note in text.notes), f"estimate: {time}"]
    print(*said, sep="\n", file=sys.stderr)
    print(written, end="")


if __name__ == "__main__":
    main()
