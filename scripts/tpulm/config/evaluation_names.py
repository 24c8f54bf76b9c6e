"""Names that jobs of the evaluation share with `evaluations`, which says what jobs there are and may change alone."""

from tpulm.config.artifacts import SPLITS

# Splits that no model is trained on.
HELD_OUT = SPLITS[1:]
# The set of pairs that is made of the corpus.
MADE_PAIRS = "made"
