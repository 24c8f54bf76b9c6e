"""The masked language models of transformers 4.57 that can be trained here, and how they differ."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from tpulm.core.errors import UserError, describe


@dataclass(frozen=True)
class Architecture:
    """What sets a model type apart.

    after_pad    whether positions are counted from the id after the pad token's, as in RoBERTa, and not from 0
    token_types  whether the model takes `token_type_ids` as tokenizers give them, one per token
    refused      why it cannot be trained here; empty for those that can
    """

    after_pad: bool = False
    token_types: bool = True
    refused: str = ""


LIKE_BERT, LIKE_ROBERTA = Architecture(), Architecture(after_pad=True)

# Every model type for which transformers has a masked language model in TensorFlow.
ARCHITECTURES = {
    "albert": LIKE_BERT,
    "bert": LIKE_BERT,
    "camembert": LIKE_ROBERTA,
    "convbert": LIKE_BERT,
    "deberta": LIKE_BERT,
    "deberta-v2": LIKE_BERT,
    "distilbert": Architecture(token_types=False),
    "electra": LIKE_BERT,
    "esm": Architecture(
        after_pad=True,
        token_types=False,
        refused="two of its variables have the same name, and a model folder holds only one of them",
    ),
    "flaubert": LIKE_BERT,
    "funnel": LIKE_BERT,
    "layoutlm": LIKE_BERT,
    "longformer": Architecture(after_pad=True, refused="XLA cannot compile the gradient of its attention"),
    "mobilebert": LIKE_BERT,
    "mpnet": Architecture(after_pad=True, token_types=False),
    "rembert": LIKE_BERT,
    "roberta": LIKE_ROBERTA,
    "roberta-prelayernorm": LIKE_ROBERTA,
    "roformer": LIKE_BERT,
    "tapas": Architecture(token_types=False),
    "xlm": LIKE_BERT,
    "xlm-roberta": LIKE_ROBERTA,
}
# Model types that only `backend: jax` trains; tpulm.specs.masked_sizes has all that it does.
JAX_ONLY = {"modernbert": Architecture(token_types=False)}


def find_architecture(name: str, where: str, backend: str = "tensorflow") -> Architecture:
    """Return the architecture of the model type `name`, which the config gives under the key `where`.

    Raises UserError for one that cannot be trained with this backend, tensorflow or jax.
    """
    if name in JAX_ONLY:
        if backend == "jax":
            return JAX_ONLY[name]
        raise UserError(
            f'{where}.architecture is "{name}", which transformers does not have in TensorFlow; set backend: jax.'
        )
    known = [other for other, found in ARCHITECTURES.items() if not found.refused]
    if name not in ARCHITECTURES:
        near = difflib.get_close_matches(name, known, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; allowed: {', '.join(known)}."
        raise UserError(f"{where}.architecture is {describe(name)}{hint}")
    found = ARCHITECTURES[name]
    if found.refused:
        raise UserError(
            f"{where}.architecture is {describe(name)}, which cannot be trained here: {found.refused}; "
            f"allowed: {', '.join(known)}."
        )
    return found


def check_vocabulary(size: int, manifest: Mapping, where: str) -> None:
    """Check that a model that a run starts from knows the tokens of the records. Raises UserError.

    size      of the model's vocabulary; manifest  the TFRecords'; where  the config key of the run
    """
    if size < manifest["vocab_size"]:
        raise UserError(
            f"{where}.init has a vocabulary of {size:,} tokens, but the records have {manifest['vocab_size']:,}; "
            "allowed: a model with the tokenizer of the records."
        )
