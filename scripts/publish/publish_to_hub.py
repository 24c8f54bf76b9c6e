"""Publish an artifact in a repository of the Hugging Face Hub.

input.files      the artifact's files, or its folder, and its card
input.before     receipt of the checkpoint that is published first; it is not read
output           receipt, JSON: place; commit; files (SHA-256 of each)
params.recipe    names, name, repository, type, branch, private, see tpulm.release.publishing;
                 newest, see tpulm.config.publications.hub_recipe

The environment variable HF_TOKEN has the token.
"""

from tpulm.core.job import job

recipe, output = snakemake.params.recipe, snakemake.output[0]

with job(snakemake.log[0], f"publish {recipe['name']}") as say:
    from tpulm.release.publishing import checked, last_receipt, publish_to_hub, write_receipt

    files, newest = checked(recipe, snakemake.input.files), recipe["newest"]
    receipt = publish_to_hub(recipe, files, last_receipt(snakemake.log[0]), say)
    if newest and not last_receipt(snakemake.log[0].replace(f"{recipe['name']}.log", f"{newest['model']}.log")):
        newest_files = {path: files[name] for path, name in newest["files"].items()}
        publish_to_hub(recipe | {"branch": newest["branch"]}, newest_files, {}, say)
    write_receipt(output, receipt)
