"""Cards of what was built, and its publication on the Hugging Face Hub and in Google Cloud Storage.

No other target needs a file of these rules. They run on the machine of Snakemake: there is the token.
"""

from tpulm.config.card_facts import croissant_of, described, facts_of
from tpulm.config.publications import branch_of, chosen, publications_of, repository_name

PUBLISH = config.get("publish", {})
# What can be published, by the folder below results/ that has its card; what is published, by name.
CARDS = {publication.card: publication for publication in publications_of(config).values()}
PUBLISHED = chosen(config)
LICENSE = {"license": PUBLISH.get("license")}


def receipts(wildcards):
    """Return the receipt of each artifact at each place that the config names. Exits where it names none."""
    if not PUBLISHED:
        or_exit(no_place)
    places = [place for place in ("hub", "gcs") if place in PUBLISH]
    return [f"results/publish/{place}/{name}.json" for place in places for name in PUBLISHED]


def no_place():
    """Raise the UserError of a config without a place to publish to."""
    raise UserError(
        "publish is missing in the config; say where to, such as publish: {hub: OWNER/NAME} or {gcs: gs://BUCKET/PREFIX}."
    )


def published_files(wildcards):
    """Return the files of an artifact, or its folder.

    Of a folder, the fingerprint or the metrics of its card tell whether it has changed; of a checkpoint, state.json.
    """
    publication = PUBLISHED[wildcards.artifact]
    if publication.folder:
        return [ancient(f"results/{publication.folder}")]
    files = [f"results/{file}" for file in publication.files.values()]
    return [ancient(file) if publication.kind == "checkpoint" else file for file in files]


def tells_a_change(wildcards):
    """Return the files that tell whether what is `ancient` has changed."""
    publication = PUBLISHED[wildcards.artifact]
    if publication.kind in ("model", "checkpoint"):
        step = int(wildcards.artifact.rpartition("/")[2]) if publication.kind == "checkpoint" else None
        return [publication.run.checkpoint(step)["state"]]
    return [f"results/{publication.folder}.json"] if publication.folder else []


def card_of(wildcards):
    """Return the card of an artifact; a checkpoint has none."""
    card = PUBLISHED[wildcards.artifact].card
    return [f"results/{card}/README.md"] if card else []


def what_is_published(wildcards):
    """Return what both places take of the config."""
    publication = PUBLISHED[wildcards.artifact]
    return {
        "name": publication.name,
        "names": list(publication.files),
        "whole": bool(publication.folder),
        "root": publication.folder or next(iter(publication.files.values())),
        "expected": publication.expected,
        "checkpoint": publication.kind == "checkpoint",
    }


rule publish:
    """What publish in the config names, at the places that it names."""
    localrule: True
    input:
        receipts,


rule cards:
    """The card of every artifact that can be published, with Croissant metadata of records."""
    localrule: True
    input:
        [f"results/{folder}/README.md" for folder in CARDS],
        [f"results/{folder}/croissant.json" for folder in RECORD_SETS],


rule write_card:
    """Describe an artifact: its data, procedure and figures, and how to use it."""
    localrule: True
    input:
        unpack(
            lambda w: {name: [f"results/{file}" for file in files] for name, files in facts_of(CARDS[w.card]).items()}
        ),
        code=code_inputs("write_card", "data"),
    output:
        "results/{card}/README.md",
    params:
        recipe=lambda w: described(CARDS[w.card], config) | LICENSE,
    log:
        "logs/cards/{card}.log",
    wildcard_constraints:
        card=one_of(CARDS),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/write_card.py"


rule write_croissant:
    """Describe the files of a set of records as Croissant metadata."""
    localrule: True
    input:
        manifest="results/{records}/manifest.json",
        code=code_inputs("write_croissant", "data"),
    output:
        "results/{records}/croissant.json",
    params:
        recipe=lambda w: croissant_of(CARDS[w.records], config) | LICENSE,
    log:
        "logs/cards/{records}-croissant.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/write_croissant.py"


rule publish_to_hub:
    """Publish an artifact, or a checkpoint, in a repository of the Hugging Face Hub."""
    localrule: True
    input:
        files=published_files,
        changes=tells_a_change,
        card=card_of,
        code=code_inputs("publish_to_hub", "data"),
    output:
        hub_receipt="results/publish/hub/{artifact}.json",
    params:
        recipe=lambda w: what_is_published(w)
        | {
            "repository": repository_name(PUBLISH, PUBLISHED[w.artifact]),
            "type": PUBLISHED[w.artifact].type,
            "branch": branch_of(PUBLISH, PUBLISHED[w.artifact]),
            "private": PUBLISH["private"],
        },
    log:
        "logs/publish/hub/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHED),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish_to_hub.py"


rule publish_to_bucket:
    """Publish an artifact, or a checkpoint, in a folder of a bucket."""
    localrule: True
    input:
        files=published_files,
        changes=tells_a_change,
        card=card_of,
        code=code_inputs("publish_to_bucket", "data"),
    output:
        "results/publish/gcs/{artifact}.json",
    params:
        recipe=lambda w: what_is_published(w)
        | {"folder": f"{PUBLISH['gcs']}/{PUBLISHED[w.artifact].repository.replace('/', '-')}"},
    log:
        "logs/publish/gcs/{artifact}.log",
    wildcard_constraints:
        artifact=one_of(PUBLISHED),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/publish_to_bucket.py"
