"""Muon: which variables it has, its steps beside those of optax, and where a mesh holds its matrices."""

import re

import numpy as np
import pytest
import test_causal
from test_causal import base_trainer, train
from test_lora import MODELS, OPTIMIZERS
from test_tuned_only import GEMMA4, QWEN

jax_backend, packed, vocabulary = test_causal.jax_backend, test_causal.packed, test_causal.vocabulary
MUON = OPTIMIZERS["muon"]
# The variables of all architectures, after the part of their paths that names a block: kernels that are a matrix for
# each head, by the axis of the heads; kernels that are one matrix; and those that AdamW has.
ROLES = {
    0: r"(attention/(query|key|value)|(self_)?attention/attention_output|attention\.output\.dense|attn\.Wo)/kernel",
    1: r"(self_attention/|attention\.self/|attn\.Wqkv\.)(query|key|value)/kernel",
    None: r"(ffw_(gating|gating_2|linear)|feedforward_(gate|intermediate|output)_dense|per_layer_(input_gate|up_proj)|"
    r"linear_attn/(in_proj_(qkv|z|a|b)|out_proj)|(intermediate|output)\.dense|mlp\.(Wi\.activated|Wi\.gate|Wo))/kernel",
    "adamw": r"(\w+\.|\w+/)*(reverse_)?embeddings|.*(/bias|/output_bias|/scale|/gamma|/beta)|"
    r"(lm_head/intermediate_dense|head/dense|per_layer_model_projection)/kernel|"
    r"linear_attn/(conv1d_kernel|dt_bias|A_log)",
}
BLOCK = r"^(decoder_block_|transformer_layer_|roberta\.encoder\.layer\.|model\.layers\.)\d+/"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def models():
    from tpulm.models import modernbert, roberta
    from tpulm.models.causal import construct
    from tpulm.specs.causal_families import constructor
    from tpulm.specs.masked_sizes import sizes_of
    from tpulm.specs.training_step import CausalArchitecture

    for sizes in MODELS.values():
        yield construct(CausalArchitecture(*constructor(sizes), 328))
    yield construct(CausalArchitecture("Gemma4Backbone", GEMMA4 | {"image_size": None, "vision_encoder": None}, 330))
    yield construct(CausalArchitecture("Qwen3_5Backbone", QWEN, 330))
    for name, module in (("roberta", roberta), ("modernbert", modernbert)):
        yield module.build(sizes_of(SIZES | {"architecture": name}, ""), 320, 3)


def test_each_variable_of_each_architecture_by_its_role(jax_backend):
    import keras
    from tpulm.models.muon import matrices_of_blocks

    keras.distribution.set_distribution(None)
    with keras.StatelessScope(initialize_variables=False):
        for model in models():
            matrices = matrices_of_blocks(model)
            paths = [variable.path for variable in model.trainable_variables]
            assert len(matrices) >= 6 * len(model.backbone.transformer_layers) and matrices.keys() <= {*paths}
            for path in paths:
                roles = [role for role, names in ROLES.items() if re.fullmatch(names, re.sub(BLOCK, "", path))]
                assert roles == [matrices.get(path, "adamw")], path


@pytest.mark.parametrize("nesterov", [pytest.param(False, marks=pytest.mark.long), True])
def test_steps_are_those_of_optax(jax_backend, nesterov):
    """Nesterov's momentum is that of Jordan et al., and optax's has a correction of bias: it gets ours as gradients."""
    import jax
    import keras
    import optax
    from optax.contrib import MuonDimensionNumbers, muon
    from tpulm.models.optimizers import make_optimizer

    # Keras adds epsilon before the bias of the second moment is corrected, optax afterwards.
    recipe = MUON | {"global_clipnorm": None, "nesterov": nesterov, "epsilon": 1e-12}
    axes = {"query": (0, 2), "output": (1, 2), "dense": (0, 1)}  # read and written, in optax
    shapes = {"query": (16, 3, 4), "output": (3, 4, 16), "dense": (24, 16), "embeddings": (20, 16)}
    draw, rate, momenta = np.random.default_rng(0), 1e-2, dict.fromkeys(axes, 0)
    start, *gradients = (
        {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()} for _ in range(5)
    )
    keras.distribution.set_distribution(None)
    optimizer, variables = make_optimizer(recipe), [keras.Variable(array, name=name) for name, array in start.items()]
    optimizer.matrices = {"query": 1, "output": 0, "dense": None}
    optimizer.build(variables)
    slots = [rate if v is optimizer.learning_rate else v.value for v in optimizer.variables]
    ours, update = [v.value for v in variables], jax.jit(optimizer.stateless_apply)
    decay, ratio, beta = (MUON[key] for key in ("weight_decay", "adam_lr_ratio", "momentum"))
    transform = muon(
        rate, beta=0.0 if nesterov else beta, nesterov=False, consistent_rms=0.2, eps=recipe["epsilon"],
        weight_decay=decay, adam_weight_decay=decay, adam_learning_rate=rate * ratio, adam_b1=MUON["beta_1"],
        adam_b2=MUON["beta_2"], muon_weight_dimension_numbers={
            name: MuonDimensionNumbers(*axes[name]) if name in axes else None for name in shapes
        },
    )  # fmt: skip
    theirs, state, step = start, transform.init(start), jax.jit(transform.update)
    for gradient in gradients:
        ours, slots = update(slots, list(gradient.values()), ours)
        momenta = {name: gradient[name] + beta * momentum for name, momentum in momenta.items()}
        ahead = {name: gradient[name] + beta * momentum for name, momentum in momenta.items()} if nesterov else {}
        updates, state = step(gradient | ahead, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    for name, array in zip(shapes, ours, strict=True):
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-5)
        assert np.abs(array - start[name]).max() > 0.01


def test_a_mesh_computes_what_one_device_does(jax_backend, packed):
    """Also in parts of a batch."""
    alone, shared = (
        base_trainer(mesh, MODELS["qwen2"], optimizer=MUON, microbatches=parts)
        for mesh, parts in (((1, 1), 1), ((2, 4), 2))
    )
    losses = train(shared, packed, 0, 4)
    np.testing.assert_allclose(losses, train(alone, packed, 0, 4), rtol=1e-3)
    assert losses[-1] < losses[0]


def test_no_device_holds_a_matrix_that_others_share(jax_backend):
    import jax
    from tpulm.models.muon import orthogonalized
    from tpulm.models.sharding import shardings

    run = base_trainer((8, 1), MODELS["qwen2"], optimizer=MUON, batch_size=8).run
    for variable in run.model.trainable_variables:
        if not variable.path.endswith(("query/kernel", "attention_output/kernel", "intermediate_dense/kernel")):
            continue
        [place], heads = shardings(run.distribution, [variable]), run.optimizer.matrices[variable.path]
        update = jax.jit(lambda value, v=variable, axis=heads: orthogonalized(value, v, axis), out_shardings=place)
        program = update.lower(jax.ShapeDtypeStruct(variable.shape, "float32", sharding=place)).compile().as_text()
        arrays = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"f32\[([\d,]+)\]", program)]
        assert 1 < max(arrays) < np.prod(variable.shape), variable.path
