"""Save a causal language model as a GGUF file, which llama.cpp loads.

input.folder    folder of rule export_transformers
input.fingerprint  SHA-256 of each of its files
output          GGUF: matrices of the type in its name, the rest in float32; vocabulary; chat template of the folder, if
                any
"""

from pathlib import Path

from tpulm.core.job import job
from tpulm.models.gguf_files import write_gguf

model, file_type = snakemake.wildcards.model, snakemake.wildcards.kind

with job(snakemake.log[0], f"{model.replace('/', ' ')} {file_type}") as say:
    write_gguf(Path(snakemake.input.folder), Path(snakemake.output[0]), file_type)
    say(f"saved as {snakemake.output[0]}")
