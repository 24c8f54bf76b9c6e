"""Read a set of pairs of sentences from files or from the Hugging Face Hub.

input.files       files of the config, or of a local dataset folder
output            Parquet, see tpulm.evaluation.material
params.recipe     phenomenon; files, or dataset with name, revision and split
"""

from tpulm.core.job import job
from tpulm.evaluation.material import write_items
from tpulm.evaluation.minimal_pairs import fetch_pairs

name = snakemake.wildcards.pairs

with job(snakemake.log[0], f"evaluation {name}") as say:
    pairs = list(fetch_pairs(name, snakemake.params.recipe, snakemake.input.files))
    write_items(snakemake.output[0], pairs)
    say(f"{len(pairs):,} pairs of {len({pair.kind for pair in pairs})} phenomena")
