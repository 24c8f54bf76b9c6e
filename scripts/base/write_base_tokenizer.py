"""Write the tokenizer of a base model for the library `tokenizers`.

input.vocabulary   vocabulary of the model, or a preset folder
input.fingerprint  SHA-256 of each of its files; none for a vocabulary
output             tokenizer.json, which puts bos and eos around a document
"""

from pathlib import Path

from tpulm.core.files import atomic_write
from tpulm.core.job import job
from tpulm.tokenization.conversion import convert
from tpulm.training import runtime

with job(snakemake.log[0], f"base {snakemake.wildcards.run}"):
    tokenizer = convert(Path(snakemake.input.vocabulary), lambda: runtime.start(cpu_threads=1, on_cpu=True))
    with atomic_write(snakemake.output[0]) as partial:
        tokenizer.save(str(partial))
