"""Sign an archive with the key of archive.sign: a DSSE envelope beside it, as model-signing writes and checks it.

input.archive   NAME-VERSION.zip
input.key       the private key: PEM, an elliptic curve
output          NAME-VERSION.zip.sig
"""

from tpulm.core.job import job

with job(snakemake.log[0], "sign") as say:
    from tpulm.release.signing import sign
    from tpulm.release.verify import signature_command

    sign(snakemake.input.archive, snakemake.input.key, snakemake.output[0])
    say(
        f"{snakemake.output[0]}; to verify it: python {' '.join(signature_command(snakemake.input.archive, 'KEY.pub'))}"
    )
