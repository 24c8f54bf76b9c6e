"""Concatenate the histories of a run's segments.

input.history    CSV of each segment in order: step, loss, accuracy, learning_rate
input.timings    CSV of each segment in order: step, seconds_per_step, tokens_per_second, devices, software, profile
output.history   one CSV for the run
output.timings   one CSV for the run
"""

from pathlib import Path

from tpulm.core.files import write_text
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.chain):
    for name in ("history", "timings"):
        parts = [Path(path).read_text(encoding="utf-8").splitlines(keepends=True) for path in snakemake.input[name]]
        write_text(snakemake.output[name], parts[0][0] + "".join("".join(lines[1:]) for lines in parts))
