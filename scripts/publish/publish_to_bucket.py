"""Publish an artifact in a folder of a bucket.

input.files      the artifact's files, or its folder, and its card
output           receipt, JSON: place; files (SHA-256 of each)
params.recipe    names, see tpulm.release.publishing; name (of the artifact); folder (gs://BUCKET/NAME)
"""

from tpulm.core.job import job

recipe, output = snakemake.params.recipe, snakemake.output[0]

with job(snakemake.log[0], f"publish {recipe['name']}") as say:
    from tpulm.release.publishing import checked, last_receipt, publish_to_bucket, write_receipt

    files = checked(recipe, snakemake.input.files)
    write_receipt(output, publish_to_bucket(recipe["folder"], files, last_receipt(snakemake.log[0]), say))
