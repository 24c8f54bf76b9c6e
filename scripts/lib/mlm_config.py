"""The transformers config of a masked language model, without importing TensorFlow."""

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_tf_auto import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES

from lib.errors import UserError


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
    return AutoConfig.for_model(architecture, vocab_size=manifest["vocab_size"], **special, **sizes)
