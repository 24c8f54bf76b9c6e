"""Cards of artifacts, and publishing on the Hugging Face Hub and Google Cloud Storage.

No other target needs files of these rules. The jobs run on the machine of Snakemake, because it has the token.
"""

from tpulm.config.publications import (
    bucket_recipe,
    card_inputs,
    card_recipe,
    hub_recipe,
    publications_of,
    published_before,
    selected_publications,
)
from tpulm.workflow.publishing import inputs_of, receipts

ARTIFACTS = publications_of(OUTLINE)
PUBLISHED = selected_publications(OUTLINE)
# By the folder of the card; of checkpoints that open as models, too.
CARDS = {made.card: made for made in [*ARTIFACTS.values(), *PUBLISHED.values()] if made.card}


rule publish:
    """Target: publish the artifacts of `publish` in the config on the Hugging Face Hub and Google Cloud Storage."""
    localrule: True
    input:
        lambda w: or_exit(receipts, config.get("publish"), PUBLISHED),


rule cards:
    """Target: the card of every artifact that can be published."""
    localrule: True
    input:
        [f"<results>/{artifact.card}/README.md" for artifact in ARTIFACTS.values()],


rule write_card:
    """Write the card of an artifact: its data, training, metrics and usage."""
    localrule: True
    input:
        unpack(lambda w: card_inputs(CARDS[w.card], EVALUATED)),
    output:
        "<results>/{card}/README.md",
    params:
        recipe=lambda w: card_recipe(CARDS[w.card], OUTLINE),
        code=code_digest("publish/write_card", "data"),
    log:
        "<logs>/cards/{card}.log",
    wildcard_constraints:
        card=one_of(CARDS),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/write_card.py"


rule publish_to_hub:
    """Publish an artifact or a checkpoint in a repository on the Hugging Face Hub."""
    localrule: True
    input:
        unpack(lambda w: inputs_of(PUBLISHED[w.artifact])),
        before=lambda w: [
            f"<results>/publish/hub/{name}.json" for name in published_before(PUBLISHED[w.artifact], PUBLISHED)
        ],
    output:
        hub_receipt="<results>/publish/hub/{artifact}.json",
    params:
        recipe=lambda w: hub_recipe(config["publish"], PUBLISHED[w.artifact]),
        code=code_digest("publish/publish_to_hub", "data"),
    log:
        "<logs>/publish/hub/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHED),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_hub.py"


rule publish_to_bucket:
    """Publish an artifact or a checkpoint in a folder of a bucket."""
    localrule: True
    input:
        unpack(lambda w: inputs_of(PUBLISHED[w.artifact])),
    output:
        "<results>/publish/gcs/{artifact}.json",
    params:
        recipe=lambda w: bucket_recipe(config["publish"], PUBLISHED[w.artifact]),
        code=code_digest("publish/publish_to_bucket", "data"),
    log:
        "<logs>/publish/gcs/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHED),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish/publish_to_bucket.py"
