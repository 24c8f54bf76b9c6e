"""Publish an artifact in a repository of the Hugging Face Hub.

input.files      the artifact's files, or its folder
input.card       README.md; none of a checkpoint
input.before     the receipt of the checkpoint that has to be there before; it is not read
output           the receipt, JSON: place; commit; files, the SHA-256 of each
params.recipe    names, of the files in the repository; name, of the artifact; whole, whether input.files is a folder;
                 root, what the first file is called below results/;
                 repository, type, branch, private, newest: see tpulm.release.publishing

HF_TOKEN in the environment is the token.
"""

from tpulm.core.job import job

recipe, given = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], f"publish {recipe['name']}") as say:
    from tpulm.core.past_jobs import refuse_changed
    from tpulm.release.artifact_checks import sums_beside
    from tpulm.release.publishing import contents, last_receipt, publish_to_hub, root_of, was_published, write_receipt

    refuse_changed([*given.files, *given.card], sums_beside(root_of(given.files[0], recipe["root"])))
    found, before = contents(recipe, given.files, given.card), last_receipt(snakemake.output[0])
    published = was_published(snakemake.output[0], recipe)
    write_receipt(snakemake.output[0], publish_to_hub(recipe, found, before, say, published))
