"""Names that jobs of the evaluation share with `evaluations`, which says what jobs there are and may change alone."""

from tpulm.config.artifacts import SPLITS

# Splits that no model is trained on.
HELD_OUT = SPLITS[1:]
# The one that selects.
VALIDATION = HELD_OUT[0]
# The set of pairs that is made of the corpus.
MADE_PAIRS = "made"
# Where a checkpoint's weights are as a model, to be scored, finetuned or asked; no artifact.
EXPORTED = "results/evaluation/checkpoints"
