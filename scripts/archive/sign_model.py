"""Sign the files of a model with the key of archive.sign, as model-signing does.

input.files     the model's files, or its folder
input.key       the private key: PEM, an elliptic curve
output          the signature
params.recipe   folder, the model's; names, of its files in there: what else is there is not signed
"""

from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "sign") as say:
    from tpulm.core.past_jobs import refuse_changed
    from tpulm.release.signing import sign

    refuse_changed(snakemake.input.files)
    sign(recipe["folder"], snakemake.input.key, snakemake.output[0], recipe["names"])
    say(f"{snakemake.output[0]} of {recipe['folder']}")
