"""From raw text to trained language models: corpus, tokenizer, TFRecords, masked LM, base LM, LoRA, report."""

from snakemake.utils import min_version

min_version("9.27")


report: "report/workflow.rst"


include: "rules/common.smk"
include: "rules/corpus.smk"


# A config without masked models, such as one for finetuning only, needs no tokenizer of its own.
if "tokenizer" in config:

    include: "rules/tokenizer.smk"


include: "rules/tfrecords.smk"


if "tfrecords" in config or MASKED:

    include: "rules/mlm.smk"


include: "rules/base.smk"
include: "rules/finetune.smk"
include: "rules/evaluation.smk"
include: "rules/samples.smk"
include: "rules/tasks.smk"
include: "rules/harness.smk"
include: "rules/overlap.smk"
include: "rules/checkpoints.smk"
include: "rules/plan.smk"
include: "rules/report.smk"
include: "rules/publish.smk"
include: "rules/upkeep.smk"


TARGETS = [
    rules.corpus.input,
    rules.tokenizer.input if "tokenizer" in config else [],
    # Not the shards themselves: where a job needs one that is gone, the run ends with a sentence, and `tfrecords`
    # writes it again.
    RECORDS["tfrecords"].manifest if "tfrecords" in config else [],
    rules.mlm.input if "tfrecords" in config or MASKED else [],
    rules.base.input,
    rules.finetune.input,
    EVALUATED.files,
    rules.report.input,
    [f"<results>/transformers/{model}" for model in MADE_HERE],
]


include: "rules/archive.smk"


rule all:
    """Target: build everything in the config; what plain `snakemake` does."""
    default_target: True
    localrule: True
    input:
        TARGETS,
        HISTORY,
