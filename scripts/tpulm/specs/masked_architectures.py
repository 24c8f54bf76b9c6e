"""The masked architectures of transformers 4.57 that can be trained here, and their differences."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpulm.core.errors import UserError, describe, suggestion


@dataclass(frozen=True)
class Architecture:
    """Properties of a model type.

    after_pad    whether positions begin after the pad id, as in RoBERTa, and not at 0
    token_types  whether the model takes one of a tokenizer's `token_type_ids` per token
    refused      why it cannot be trained here; "" if it can
    """

    after_pad: bool = False
    token_types: bool = True
    refused: str = ""


LIKE_BERT, LIKE_ROBERTA = Architecture(), Architecture(after_pad=True)

# All model types with a masked language model in TensorFlow in transformers.
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
# Model types that only `backend: jax` trains; tpulm.specs.masked_sizes has all model types on JAX.
JAX_ONLY = {"modernbert": Architecture(token_types=False)}


def find_architecture(name: str, where: str, backend: str = "tensorflow") -> Architecture:
    """Return the architecture of a model type; where  config key.

    Raises UserError for one that cannot be trained with this backend, tensorflow or jax.
    """
    if name in JAX_ONLY:
        if backend == "jax":
            return JAX_ONLY[name]
        raise UserError(
            f'{where}.architecture is "{name}", which transformers does not have in TensorFlow; set backend: jax.'
        )
    known = [type_name for type_name, architecture in ARCHITECTURES.items() if not architecture.refused]
    if name not in ARCHITECTURES:
        raise UserError(f"{where}.architecture is {describe(name)}{suggestion(name, known, 'allowed')}")
    architecture = ARCHITECTURES[name]
    if architecture.refused:
        raise UserError(
            f"{where}.architecture is {describe(name)}, which cannot be trained here: {architecture.refused}; "
            f"allowed: {', '.join(known)}."
        )
    return architecture


def check_vocabulary(size: int, manifest: Mapping, where: str) -> None:
    """Raise UserError if the model that a run starts from lacks tokens of the records.

    size  of the model's vocabulary; manifest  of the TFRecords; where  config key of the run
    """
    if size < manifest["vocab_size"]:
        raise UserError(
            f"{where}.init has a vocabulary of {size:,} tokens, but the records have {manifest['vocab_size']:,}; "
            "allowed: a model with the tokenizer of the records."
        )
