"""Make the transformers config of a masked language model, without importing TensorFlow."""

from transformers import AutoConfig, PretrainedConfig

from tpulm.core.errors import UserError
from tpulm.specs.masked_architectures import check_vocabulary, find_architecture
from tpulm.specs.masked_sizes import SIZE_TABLES, sizes_of


def model_config(model: dict, manifest: dict, where: str, backend: str = "tensorflow") -> PretrainedConfig:
    """Return the transformers config of `model`, with vocabulary and special ids of the TFRecords' manifest.

    Raises UserError, naming `where` in the user's config, for an architecture that `backend` cannot train, an unknown
    key, or too few positions for the records and the pad id.
    """
    architecture = model["architecture"]
    find_architecture(architecture, where, backend)
    known = AutoConfig.for_model(architecture).to_dict()
    unknown = sorted(set(model) - set(known) - {"architecture"})
    if unknown:
        raise UserError(f'{where} has the key "{unknown[0]}", which a {architecture} config does not have.')
    ids = manifest["special_ids"]
    if backend == "jax":
        model = {**model, **sizes_of(model, where), **SIZE_TABLES[architecture].built_in}
    sizes = {key: value for key, value in model.items() if key != "architecture"}
    special = {"bos_token_id": ids["cls"], "eos_token_id": ids["sep"], "pad_token_id": ids["pad"]}
    roles = [role for role in ("cls", "sep") if isinstance(known.get(f"{role}_token_id"), int)]
    special |= {f"{role}_token_id": ids[role] for role in roles}  # by default, the ids are those of another vocabulary
    config = AutoConfig.for_model(architecture, vocab_size=manifest["vocab_size"], **special, **sizes)
    check_positions(config, manifest, where, backend)
    return config


def init_config(path: str, manifest: dict, where: str, backend: str = "tensorflow") -> PretrainedConfig:
    """Return the transformers config of a model that a run starts from; path  its config.json.

    Raises UserError, naming `where` in the user's config, if it cannot read the records of the manifest.
    """
    config = AutoConfig.from_pretrained(path)
    if backend == "jax":
        config.update(SIZE_TABLES[config.model_type].built_in)
    check_vocabulary(config.vocab_size, manifest, where)
    check_positions(config, manifest, f"{where}.init", backend)
    return config


def check_positions(config: PretrainedConfig, manifest: dict, where: str, backend: str) -> None:
    """Raise UserError if a model has fewer positions than a record has tokens."""
    after_pad = find_architecture(config.model_type, where, backend).after_pad
    ids = manifest["special_ids"]
    positions = getattr(config, "max_position_embeddings", None)
    needed = manifest["sequence_length"] + (ids["pad"] + 1 if after_pad else 0)
    if isinstance(positions, int) and 0 < positions < needed:
        raise UserError(
            f"{where}.max_position_embeddings is {positions}; allowed: {needed} or more for sequences of "
            f"{manifest['sequence_length']} tokens and a pad id of {ids['pad']}."
        )
