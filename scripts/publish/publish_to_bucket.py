"""Publish an artifact in a folder of a bucket.

input.files      the artifact's files, or its folder
input.card       README.md; none of a checkpoint
output           the receipt, JSON: place; files, the SHA-256 of each
params.recipe    names, of the files in the folder; name, of the artifact; whole, whether input.files is a folder;
                 root, what the first file is called below results/;
                 folder: see tpulm.release.publishing
"""

from tpulm.core.job import job

recipe, given = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], f"publish {recipe['name']}") as say:
    from tpulm.core.past_jobs import refuse_changed
    from tpulm.release.artifact_checks import sums_beside
    from tpulm.release.publishing import contents, last_receipt, publish_to_bucket, root_of, write_receipt

    refuse_changed([*given.files, *given.card], sums_beside(root_of(given.files[0], recipe["root"])))
    found, before = contents(recipe, given.files, given.card), last_receipt(snakemake.output[0])
    write_receipt(snakemake.output[0], publish_to_bucket(recipe, found, before, say))
