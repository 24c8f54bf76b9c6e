"""The masked language models that run on JAX, RoBERTa and ModernBERT, with sizes named as in transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulm.core.errors import UserError, describe

# Dropout of the attention probabilities: as of the hidden states, or none; a kernel of attention has none.
ATTENTION_DROPOUT = "attention_probs_dropout_prob"
TOKEN_TYPES = "type_vocab_size"
# Of a count or a theta.
MOST = 2**31 - 1


@dataclass(frozen=True)
class Kind:
    """What can be chosen of an architecture.

    sizes     their defaults: counts, but for
    shares    numbers from 0 to less than 1
    thetas    numbers of more than 0, at most MOST
    built_in         what the model has anyway, and its config.json says
    in_transformers  the defaults of transformers that are others, for runs on TensorFlow
    """

    sizes: Mapping[str, Any]
    built_in: Mapping[str, Any]
    in_transformers: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    thetas: tuple[str, ...] = ()


KINDS = {
    "roberta": Kind(  # the defaults of transformers' RobertaConfig (Liu et al. 2019)
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
    "modernbert": Kind(  # those of its ModernBertConfig: ModernBERT-base (Warner et al. 2024)
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
    """Return whether JAX can open the finished masked model that a config.json describes."""
    kind = KINDS.get(config.get("model_type", ""))
    if kind is None:
        return False
    recipe = config_recipe(config)
    return all(recipe.get(key, value) == value for key, value in kind.built_in.items())


def config_recipe(config: Mapping) -> dict:
    """Return the config.json of a model in the form of a run's `model` in the config.

    The number of token types is left out: a text has only the first one, which is added to the positions.
    """
    architecture = config["model_type"]
    if architecture not in KINDS:
        return {"architecture": architecture}
    kind = KINDS[architecture]
    keys = dict.fromkeys((*kind.sizes, *kind.built_in, *kind.in_transformers))
    return {"architecture": architecture} | {key: config[key] for key in keys if key in config and key != TOKEN_TYPES}


def exported_model(model: Mapping, backend: str) -> dict:
    """Return the sizes and settings in the config.json of a run's model; model  as in the config."""
    kind = KINDS.get(model["architecture"], Kind({}, {}))
    defaults = kind.in_transformers if backend == "tensorflow" else kind.built_in
    return {**defaults, **model, "model_type": model["architecture"]}


def sizes_of(model: dict, where: str) -> dict:
    """Return the sizes of `model`, a run's in the config, those that it leaves out included.

    Raises UserError, naming the key `where`, for what the models on JAX cannot be.
    """
    name = model["architecture"]
    given = {key: value for key, value in model.items() if key != "architecture"}
    if name not in KINDS:
        raise UserError(f"{where}.architecture is {describe(name)}; allowed with backend: jax: {', '.join(KINDS)}.")
    kind = KINDS[name]
    fixed = {key: [value] for key, value in kind.built_in.items()}
    if name == "roberta":
        dropout = given.get("hidden_dropout_prob", kind.sizes["hidden_dropout_prob"])
        fixed[ATTENTION_DROPOUT] = [dropout, 0] if dropout else [0]
    check_keys(given, where, kind.sizes, fixed)
    sizes = {**kind.sizes, **{key: value for key, value in given.items() if key in kind.sizes}}
    for key, value in sizes.items():
        check_number(f"{where}.{key}", value, key in kind.shares, key in kind.thetas)
    check_heads(sizes, where)
    if name == "roberta":
        return sizes | {ATTENTION_DROPOUT: given.get(ATTENTION_DROPOUT, dropout)}
    check_rotation(sizes, where)
    return sizes | {key: float(sizes[key]) for key in kind.thetas}


def check_keys(given: Mapping, where: str, sizes: Mapping, fixed: Mapping[str, list]) -> None:
    """Check that all keys are known, and the values of those that are `fixed`. Raises UserError."""
    for key, value in given.items():
        if key in fixed and value not in fixed[key]:
            allowed = " or ".join(map(str, fixed[key]))
            raise UserError(f"{where}.{key} is {describe(value)}; allowed with backend: jax: {allowed}.")
        if key not in fixed and key not in sizes:
            raise UserError(
                f"{where} has the key {describe(key)}; allowed with backend: jax: architecture, "
                f"{', '.join([*sizes, *fixed])}."
            )


def check_number(where: str, value: Any, share: bool, theta: bool) -> None:
    """Check a size: a count, or a share, or a theta. Raises UserError."""
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
    """Check that the heads divide the hidden states, where `sizes` has both. Raises UserError."""
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if heads and hidden and hidden % heads:
        raise UserError(f"{where}.hidden_size is {hidden}; allowed: a multiple of num_attention_heads, {heads}.")


def check_rotation(sizes: dict, where: str) -> None:
    """Check that a head has two halves, as rotary positions need them. Raises UserError."""
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if hidden % (2 * heads):
        raise UserError(
            f"{where}.hidden_size is {hidden}; allowed: a multiple of twice num_attention_heads, {2 * heads}."
        )
