"""The RoBERTa models that keras-hub can build, with sizes named as in transformers."""

from tpulm.core.errors import UserError

# As in transformers' RobertaConfig (Liu et al. 2019).
SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
SHARES = ("hidden_dropout_prob", "initializer_range")  # numbers from 0 to less than 1; the others are counts
# Dropout of the attention probabilities: as of the hidden states, or none; a kernel of attention has none.
ATTENTION_DROPOUT = "attention_probs_dropout_prob"
# What keras-hub's RoBERTa has built in; transformers has to be told.
BUILT_IN = {"layer_norm_eps": 1e-5, "hidden_act": "gelu", "type_vocab_size": 1}


def sizes_of(model: dict, where: str) -> dict:
    """Return the sizes of `model`, a run's in the config, those that it leaves out included.

    Raises UserError, naming the key `where`, for what keras-hub's RoBERTa cannot be.
    """
    given = {key: value for key, value in model.items() if key != "architecture"}
    if model["architecture"] != "roberta":
        raise UserError(f"{where}.architecture is {model['architecture']}; allowed with backend: jax: roberta.")
    dropout = given.get("hidden_dropout_prob", SIZES["hidden_dropout_prob"])
    fixed = {key: [value] for key, value in BUILT_IN.items()} | {ATTENTION_DROPOUT: [dropout, 0] if dropout else [0]}
    for key, value in given.items():
        if key in fixed and value not in fixed[key]:
            allowed = " or ".join(map(str, fixed[key]))
            raise UserError(f"{where}.{key} is {value}; allowed with backend: jax: {allowed}.")
        if key not in fixed and key not in SIZES:
            raise UserError(
                f'{where} has the key "{key}"; allowed with backend: jax: architecture, {", ".join([*SIZES, *fixed])}.'
            )
    sizes = SIZES | {key: value for key, value in given.items() if key in SIZES}
    for key, value in sizes.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        good = number and (0 <= value < 1 if key in SHARES else isinstance(value, int) and value > 0)
        if not good:
            allowed = "a number from 0 to less than 1" if key in SHARES else "a whole number, 1 or more"
            raise UserError(f"{where}.{key} is {value}; allowed: {allowed}.")
    check_heads(sizes, where)
    return sizes | {ATTENTION_DROPOUT: given.get(ATTENTION_DROPOUT, dropout)}


def check_heads(sizes: dict, where: str) -> None:
    """Check that the heads divide the hidden states, where `sizes` has both. Raises UserError."""
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if heads and hidden and hidden % heads:
        raise UserError(f"{where}.hidden_size is {hidden}; allowed: a multiple of num_attention_heads, {heads}.")
