"""Describe the files of a set of records as Croissant metadata.

input.manifest   manifest.json
output           JSON-LD, see tpulm.report.croissant
params.recipe    name; repository, of the hub, or null; license or null
"""

from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job import job

with job(snakemake.log[0], f"croissant {snakemake.wildcards.records}"):
    from tpulm.report.croissant import metadata

    path = snakemake.input.manifest
    write_json(snakemake.output[0], metadata(snakemake.params.recipe, read_json(path), sha256(path)))
