"""Sizes of the masked models on JAX, RoBERTa and ModernBERT, named as in transformers: defaults and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulm.core.errors import UserError, describe

# Dropout of the attention probabilities: that of the hidden states, or none, as with an attention kernel.
ATTENTION_DROPOUT = "attention_probs_dropout_prob"
TOKEN_TYPES = "type_vocab_size"
MOST = 2**31 - 1  # largest count or theta


@dataclass(frozen=True)
class SizeTable:
    """The sizes of an architecture.

    sizes            default values by name; whole numbers, except those in shares and thetas
    shares           numbers from 0 to less than 1
    thetas           numbers above 0, at most MOST
    built_in         fixed settings, which are in config.json
    in_transformers  different defaults of transformers, for runs on TensorFlow
    """

    sizes: Mapping[str, Any]
    built_in: Mapping[str, Any]
    in_transformers: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    thetas: tuple[str, ...] = ()


SIZE_TABLES = {
    "roberta": SizeTable(  # the defaults of transformers' RobertaConfig (Liu et al. 2019)
        sizes={
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
            "hidden_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-5,
        },
        built_in={"hidden_act": "gelu", TOKEN_TYPES: 1},
        in_transformers={"layer_norm_eps": 1e-12, ATTENTION_DROPOUT: 0.1},
        shares=("hidden_dropout_prob", "initializer_range", "layer_norm_eps"),
    ),
    "modernbert": SizeTable(  # those of its ModernBertConfig: ModernBERT-base (Warner et al. 2024)
        sizes={
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "max_position_embeddings": 8192,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
            "initializer_range": 0.02,
        },
        built_in={
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "initializer_cutoff_factor": 2.0,
        },
        shares=("embedding_dropout", "mlp_dropout", "initializer_range"),
        thetas=("global_rope_theta", "local_rope_theta"),
    ),
}


def opens(config: Mapping) -> bool:
    """Return whether JAX can open the masked model of a config.json."""
    table = SIZE_TABLES.get(config.get("model_type", ""))
    if table is None:
        return False
    recipe = config_recipe(config)
    return all(recipe.get(key, value) == value for key, value in table.built_in.items())


def config_recipe(config: Mapping) -> dict:
    """Return the section `model` of a run for the model of a config.json, given its content.

    The number of token types is left out: texts have only the first one, whose embedding is added to the positions.
    """
    architecture = config["model_type"]
    if architecture not in SIZE_TABLES:
        return {"architecture": architecture}
    table = SIZE_TABLES[architecture]
    keys = dict.fromkeys((*table.sizes, *table.built_in, *table.in_transformers))
    return {"architecture": architecture} | {key: config[key] for key in keys if key in config and key != TOKEN_TYPES}


def exported_model(model: Mapping, backend: str) -> dict:
    """Return the keys of config.json for a run's model, named as in transformers; model  its section of the config."""
    table = SIZE_TABLES.get(model["architecture"], SizeTable({}, {}))
    defaults = table.in_transformers if backend == "tensorflow" else table.built_in
    return {**defaults, **model, "model_type": model["architecture"]}


def sizes_of(model: dict, where: str) -> dict:
    """Return all sizes of a model on JAX, defaults included; model  of a run in the config, where  its key.

    Raises UserError, naming the key, for sizes that models on JAX cannot have.
    """
    name = model["architecture"]
    settings = {key: value for key, value in model.items() if key != "architecture"}
    if name not in SIZE_TABLES:
        raise UserError(
            f"{where}.architecture is {describe(name)}; allowed with backend: jax: {', '.join(SIZE_TABLES)}."
        )
    table = SIZE_TABLES[name]
    fixed = {key: [value] for key, value in table.built_in.items()}
    if name == "roberta":
        dropout = settings.get("hidden_dropout_prob", table.sizes["hidden_dropout_prob"])
        fixed[ATTENTION_DROPOUT] = [dropout, 0] if dropout else [0]
    check_keys(settings, where, table.sizes, fixed)
    sizes = {**table.sizes, **{key: value for key, value in settings.items() if key in table.sizes}}
    for key, value in sizes.items():
        check_number(f"{where}.{key}", value, key in table.shares, key in table.thetas)
    check_heads(sizes, where)
    if name == "roberta":
        return sizes | {ATTENTION_DROPOUT: settings.get(ATTENTION_DROPOUT, dropout)}
    check_rotation(sizes, where)
    return sizes | {key: float(sizes[key]) for key in table.thetas}


def check_keys(settings: Mapping, where: str, sizes: Mapping, fixed: Mapping[str, list]) -> None:
    """Raise UserError for an unknown key, or another value of a `fixed` key than its allowed ones."""
    for key, value in settings.items():
        if key in fixed and value not in fixed[key]:
            allowed = " or ".join(map(str, fixed[key]))
            raise UserError(f"{where}.{key} is {describe(value)}; allowed with backend: jax: {allowed}.")
        if key not in fixed and key not in sizes:
            raise UserError(
                f"{where} has the key {describe(key)}; allowed with backend: jax: architecture, "
                f"{', '.join([*sizes, *fixed])}."
            )


def check_number(where: str, value: Any, share: bool, theta: bool) -> None:
    """Raise UserError for an invalid size: a count, a share or a theta."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if share:
        good, allowed = number and 0 <= value < 1, "a number, 0 or more, less than 1"
    elif theta:
        good, allowed = number and 0 < value <= MOST, f"a number, more than 0, at most {MOST}"
    else:
        good = number and isinstance(value, int) and 0 < value <= MOST
        allowed = f"a whole number, 1 or more, at most {MOST}"
    if not good:
        raise UserError(f"{where} is {describe(value)}; allowed: {allowed}.")


def check_heads(sizes: dict, where: str) -> None:
    """Raise UserError if the number of heads does not divide hidden_size, if `sizes` has both."""
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if heads and hidden and hidden % heads:
        raise UserError(f"{where}.hidden_size is {hidden}; allowed: a multiple of num_attention_heads, {heads}.")


def check_rotation(sizes: dict, where: str) -> None:
    """Raise UserError if the width of a head is odd: rotary positions need two halves."""
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if hidden % (2 * heads):
        raise UserError(
            f"{where}.hidden_size is {hidden}; allowed: a multiple of twice num_attention_heads, {2 * heads}."
        )
