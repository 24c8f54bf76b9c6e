"""Cards of artifacts, and publishing on the Hugging Face Hub and Google Cloud Storage.

No other target needs files of these rules. The jobs run on the machine of Snakemake, because it has the token.
"""

from tpulm.workflow.publishing import Publishing

PUBLISHING = Publishing(config)


rule publish:
    """Target: publish the artifacts of `publish` in the config on the Hugging Face Hub and Google Cloud Storage."""
    localrule: True
    input:
        PUBLISHING.receipts,


rule cards:
    """Target: the card of every artifact that can be published."""
    localrule: True
    input:
        [f"<results>/{folder}/README.md" for folder in PUBLISHING.cards],


rule write_card:
    """Write the card of an artifact: its data, training, metrics and usage."""
    localrule: True
    input:
        unpack(PUBLISHING.facts),
        code=code_inputs("publish/write_card", "data"),
    output:
        "<results>/{card}/README.md",
    params:
        recipe=PUBLISHING.card_recipe,
    log:
        "<logs>/cards/{card}.log",
    wildcard_constraints:
        card=one_of([*PUBLISHING.cards, *PUBLISHING.checkpoint_cards]),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/write_card.py"


rule publish_to_hub:
    """Publish an artifact or a checkpoint in a repository on the Hugging Face Hub."""
    localrule: True
    input:
        files=PUBLISHING.files,
        changes=PUBLISHING.changes,
        card=PUBLISHING.card,
        before=PUBLISHING.before,
        code=code_inputs("publish/publish_to_hub", "data"),
    output:
        hub_receipt="<results>/publish/hub/{artifact}.json",
    params:
        recipe=PUBLISHING.to_hub,
    log:
        "<logs>/publish/hub/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHING.published),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_hub.py"


rule publish_to_bucket:
    """Publish an artifact or a checkpoint in a folder of a bucket."""
    localrule: True
    input:
        files=PUBLISHING.files,
        changes=PUBLISHING.changes,
        card=PUBLISHING.card,
        code=code_inputs("publish/publish_to_bucket", "data"),
    output:
        "<results>/publish/gcs/{artifact}.json",
    params:
        recipe=PUBLISHING.to_bucket,
    log:
        "<logs>/publish/gcs/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHING.published),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_bucket.py"
