"""Cards of what was built, and its publication on the Hugging Face Hub and in Google Cloud Storage.

No other target needs a file of these rules. They run on the machine of Snakemake: there is the token.
"""

from tpulm.workflow.publishing import Publishing

PUBLISHING = Publishing(config)


rule publish:
    """Target: what `publish` in the config names, at the places that it names."""
    localrule: True
    input:
        PUBLISHING.receipts,


rule cards:
    """Target: the card of every artifact that can be published, with Croissant metadata of records."""
    localrule: True
    input:
        [f"results/{folder}/README.md" for folder in PUBLISHING.cards],
        [f"results/{folder}/croissant.json" for folder in RECORD_SETS],


rule write_card:
    """Describe an artifact: its data, procedure and figures, and how to use it."""
    localrule: True
    input:
        unpack(PUBLISHING.facts),
        code=code_inputs("publish/write_card", "data"),
    output:
        "results/{card}/README.md",
    params:
        recipe=PUBLISHING.described,
    log:
        "logs/cards/{card}.log",
    wildcard_constraints:
        card=one_of(PUBLISHING.cards),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/write_card.py"


rule write_croissant:
    """Describe the files of a set of records as Croissant metadata."""
    localrule: True
    input:
        manifest="results/{records}/manifest.json",
        code=code_inputs("publish/write_croissant", "data"),
    output:
        "results/{records}/croissant.json",
    params:
        recipe=PUBLISHING.croissant,
    log:
        "logs/cards/{records}-croissant.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/write_croissant.py"


rule publish_to_hub:
    """Publish an artifact, or a checkpoint, in a repository of the Hugging Face Hub."""
    localrule: True
    input:
        files=PUBLISHING.files,
        changes=PUBLISHING.changes,
        card=PUBLISHING.card,
        code=code_inputs("publish/publish_to_hub", "data"),
    output:
        hub_receipt="results/publish/hub/{artifact}.json",
    params:
        recipe=PUBLISHING.to_hub,
    log:
        "logs/publish/hub/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHING.published),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_hub.py"


rule publish_to_bucket:
    """Publish an artifact, or a checkpoint, in a folder of a bucket."""
    localrule: True
    input:
        files=PUBLISHING.files,
        changes=PUBLISHING.changes,
        card=PUBLISHING.card,
        code=code_inputs("publish/publish_to_bucket", "data"),
    output:
        "results/publish/gcs/{artifact}.json",
    params:
        recipe=PUBLISHING.to_bucket,
    log:
        "logs/publish/gcs/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHING.published),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_bucket.py"
