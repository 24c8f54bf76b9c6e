"""The transformers config of a masked language model, without importing TensorFlow."""

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_tf_auto import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES

from lib.errors import UserError

# Architectures that number positions from the one after the pad id, as RoBERTa does.
AFTER_PAD = {"camembert", "esm", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"}


def model_config(model: dict, manifest: dict, where: str) -> PretrainedConfig:
    """Return the transformers config of `model`, with vocabulary and special ids of the TFRecords' manifest.

    Raises UserError, naming `where` in the user's config, for an unknown architecture or key.
    """
    architecture = model["architecture"]
    if architecture not in TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise UserError(
            f'{where}.architecture is "{architecture}"; allowed: {", ".join(TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES)}.'
        )
    known = AutoConfig.for_model(architecture).to_dict()
    unknown = sorted(set(model) - set(known) - {"architecture"})
    if unknown:
        raise UserError(f'{where} has the key "{unknown[0]}", which a {architecture} config does not know.')
    ids = manifest["special_ids"]
    sizes = {key: value for key, value in model.items() if key != "architecture"}
    special = {"bos_token_id": ids["cls"], "eos_token_id": ids["sep"], "pad_token_id": ids["pad"]}
    config = AutoConfig.for_model(architecture, vocab_size=manifest["vocab_size"], **special, **sizes)
    positions = getattr(config, "max_position_embeddings", None)
    needed = manifest["sequence_length"] + (ids["pad"] + 1 if architecture in AFTER_PAD else 0)
    if isinstance(positions, int) and 0 < positions < needed:
        raise UserError(
            f"{where}.max_position_embeddings is {positions}; allowed: {needed} or more for sequences of "
            f"{manifest['sequence_length']} tokens and a pad id of {ids['pad']}."
        )
    return config
