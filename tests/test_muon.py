"""Muon: which variables it has, its steps beside those of optax, and where a mesh holds its matrices."""

import re

import numpy as np
import pytest
import test_causal
from test_causal import base_trainer, evaluate, train_in_segments
from test_lora import MODELS, OPTIMIZERS
from test_tuned_only import GEMMA4, QWEN

jax_backend, packed, vocabulary = test_causal.jax_backend, test_causal.packed, test_causal.vocabulary
MUON = OPTIMIZERS["muon"]
# Every variable of every architecture, without the part of its path that names the block: a kernel that is a matrix
# for each head, by the axis of the heads; a kernel that is one matrix; and what AdamW has.
ROLES = {
    0: "attention/query attention/key attention/value attention/attention_output self_attention/attention_output "
    "attention.output.dense attn.Wo",
    1: "self_attention/query self_attention/key self_attention/value attention.self/query attention.self/key "
    "attention.self/value attn.Wqkv.query attn.Wqkv.key attn.Wqkv.value",
    None: "ffw_gating ffw_gating_2 ffw_linear per_layer_input_gate per_layer_up_proj feedforward_gate_dense "
    "feedforward_intermediate_dense feedforward_output_dense linear_attn/in_proj_qkv linear_attn/in_proj_z "
    "linear_attn/in_proj_a linear_attn/in_proj_b linear_attn/out_proj intermediate.dense output.dense mlp.Wi.activated "
    "mlp.Wi.gate mlp.Wo",
}
ADAMW = """token_embedding/embeddings token_embedding/reverse_embeddings per_layer_token_embedding/embeddings
roberta.embeddings/word_embeddings/embeddings roberta.embeddings/position_embeddings/embeddings
model.embeddings.tok_embeddings/embeddings per_layer_model_projection/kernel lm_head/intermediate_dense/kernel
head/dense/kernel lm_head/output_bias head/output_bias lm_head/intermediate_dense/bias intermediate.dense/bias
output.dense/bias attention.output.dense/bias attention.self/query/bias attention.self/key/bias
attention.self/value/bias
self_attention/query/bias self_attention/key/bias self_attention/value/bias linear_attn/conv1d_kernel
linear_attn/dt_bias linear_attn/A_log linear_attn/norm/scale final_normalization/scale pre_attention_norm/scale
post_attention_norm/scale pre_ffw_norm/scale post_ffw_norm/scale post_per_layer_input_norm/scale
per_layer_projection_norm/scale attention/query_norm/scale attention/key_norm/scale self_attention/query_norm/scale
self_attention/key_norm/scale self_attention/query_dense_layernorm/scale self_attention/key_dense_layernorm/scale
input_layernorm/scale post_attention_layernorm/scale self_attention_layernorm/scale feedforward_layernorm/scale
sequence_output_layernorm/scale roberta.embeddings.LayerNorm/gamma roberta.embeddings.LayerNorm/beta
attention.output.LayerNorm/gamma attention.output.LayerNorm/beta output.LayerNorm/gamma output.LayerNorm/beta
lm_head/intermediate_layer_norm/gamma lm_head/intermediate_layer_norm/beta model.embeddings.norm/gamma attn_norm/gamma
mlp_norm/gamma model.final_norm/gamma head/norm/gamma"""
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

    block = r"(decoder_block_|transformer_layer_|roberta\.encoder\.layer\.|model\.layers\.)\d+/"
    roles = {f"{name}/kernel": axis for axis, names in ROLES.items() for name in names.split()}
    roles |= dict.fromkeys(ADAMW.split(), "adamw")
    keras.distribution.set_distribution(None)
    found = {}
    with keras.StatelessScope(initialize_variables=False):
        for model in models():
            matrices = matrices_of_blocks(model)
            assert matrices and matrices.keys() <= {v.path for v in model.trainable_variables}
            for variable in model.trainable_variables:
                found.setdefault(re.sub(block, "", variable.path), set()).add(matrices.get(variable.path, "adamw"))
    assert found == {name: {role} for name, role in roles.items()}


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_are_those_of_optax(jax_backend, nesterov):
    """Nesterov's momentum is that of Jordan et al., and optax's has a correction of bias: it gets ours as gradients."""
    import jax
    import keras
    import optax
    from optax.contrib import MuonDimensionNumbers, muon
    from tpulm.models.optimizers import make_optimizer

    # Keras adds epsilon before the bias of the second moment is corrected, optax afterwards.
    recipe = MUON | {"global_clipnorm": None, "nesterov": nesterov, "epsilon": 1e-12}
    draw, rate, lower = np.random.default_rng(0), 1e-2, 1e-2 * MUON["adam_lr_ratio"]
    numbers = {
        "query": MuonDimensionNumbers(0, 2), "output": MuonDimensionNumbers(1, 2), "dense": MuonDimensionNumbers(),
        "embeddings": None, "bias": None,
    }  # fmt: skip
    shapes = {"query": (16, 3, 4), "output": (3, 4, 16), "dense": (24, 16), "embeddings": (20, 16), "bias": (3, 4)}
    keras.distribution.set_distribution(None)
    start = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    variables = [keras.Variable(array, name=name) for name, array in start.items()]
    gradients = [{name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()} for _ in range(4)]
    optimizer = make_optimizer(recipe)
    optimizer.matrices = {"query": 1, "output": 0, "dense": None}
    optimizer.build(variables)
    slots = [rate if v is optimizer.learning_rate else v.value for v in optimizer.variables]
    ours, update = [v.value for v in variables], jax.jit(optimizer.stateless_apply)
    for gradient in gradients:
        ours, slots = update(slots, [gradient[name] for name in shapes], ours)
    momenta = dict.fromkeys(shapes, 0)
    for gradient in gradients if nesterov else ():
        for name in optimizer.matrices:
            momenta[name] = gradient[name] + MUON["momentum"] * momenta[name]
            gradient[name] = gradient[name] + MUON["momentum"] * momenta[name]
    adam = {"adam_b1": MUON["beta_1"], "adam_b2": MUON["beta_2"], "adam_learning_rate": lower, "eps": recipe["epsilon"]}
    muon_of = {"beta": 0.0 if nesterov else MUON["momentum"], "nesterov": False, "consistent_rms": 0.2}
    for decay, names in ((MUON["weight_decay"], shapes.keys() - {"bias"}), (0.0, {"bias"})):
        dimensions = {name: numbers[name] for name in names}
        decays = {"weight_decay": decay, "adam_weight_decay": decay}
        transform = muon(rate, muon_weight_dimension_numbers=dimensions, **decays, **adam, **muon_of)
        theirs = {name: start[name] for name in names}
        state, step = transform.init(theirs), jax.jit(transform.update)
        for gradient in gradients:
            updates, state = step({name: gradient[name] for name in names}, state, theirs)
            theirs = optax.apply_updates(theirs, updates)
        for name in names:
            np.testing.assert_allclose(ours[list(shapes).index(name)], theirs[name], rtol=1e-5, atol=1e-5)
            assert np.abs(theirs[name] - start[name]).max() > 0.01


def test_a_mesh_computes_what_one_device_does(jax_backend, packed, tmp_path):
    """Also in parts of a batch, and in two segments; no device holds a matrix whole that the layout map divides."""
    import jax
    from tpulm.models.muon import orthogonalized
    from tpulm.models.sharding import shardings

    losses, evaluations = [], []
    for mesh, parts in (((1, 1), 1), ((2, 4), 2)):
        trainer = base_trainer(mesh, MODELS["qwen2"], optimizer=MUON, microbatches=parts)
        losses.append(train_in_segments(trainer, packed, tmp_path, 6))
        evaluations.append(evaluate(trainer, packed)["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    np.testing.assert_allclose(evaluations[1], evaluations[0], rtol=1e-3)
    assert losses[0][-1] < losses[0][0] - 1
    run = trainer.run
    for variable in run.model.trainable_variables:
        if not variable.path.endswith(("query/kernel", "attention_output/kernel", "intermediate_dense/kernel")):
            continue
        [place], heads = shardings(run.distribution, [variable]), run.optimizer.matrices[variable.path]
        update = jax.jit(lambda value, v=variable, axis=heads: orthogonalized(value, v, axis), out_shardings=place)
        program = update.lower(jax.ShapeDtypeStruct(variable.shape, "float32", sharding=place)).compile().as_text()
        arrays = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"f32\[([\d,]+)\]", program)]
        assert 1 < max(arrays) < np.prod(variable.shape), variable.path
