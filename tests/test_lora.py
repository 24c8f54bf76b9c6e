"""Adapters as people run them: what they adapt, on a base of which type, with which optimizer, spread how."""

import json
import re
from functools import partial

import numpy as np
import pytest
import test_causal
from conftest import open_vocabulary
from test_causal import RECIPE, SIZES, draw_lora, logits, prose, save_base, train, train_in_segments, trainer_of
from tpulm.core.arrays import save_arrays
from tpulm.core.errors import UserError
from tpulm.models import peft as peft_adapter
from tpulm.records.causal_batches import held_out_batches, training_batch
from tpulm.specs.causal_families import FAMILIES, TARGETS
from tpulm.specs.training_step import ModelSpec, TrainingStep
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary

# Sizes with which each family can be spread over 2 x 4 devices.
GEMMA = SIZES | {"num_layers": 1, "num_key_value_heads": 4}
LLAMA = {key: size for key, size in GEMMA.items() if key != "head_dim"}
MODELS = {name: {"architecture": name} | (GEMMA if FAMILIES[name].head_dim else LLAMA) for name in FAMILIES}
ADAFACTOR = {"beta_2_decay": -0.8, "epsilon_1": 1e-30, "epsilon_2": 1e-3, "clip_threshold": 1.0}
OPTIMIZERS = {
    "lion": {"name": "lion", "weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "global_clipnorm": 1.0},
    "adafactor": {"name": "adafactor", "weight_decay": 0.1, "global_clipnorm": None} | ADAFACTOR,
    "muon": test_causal.OPTIMIZER | {"name": "muon", "momentum": 0.95, "adam_lr_ratio": 0.5},
}
EVERYTHING = list(TARGETS)
jax_backend, precision = test_causal.jax_backend, test_causal.precision
packed, single = test_causal.packed, test_causal.single


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.spm"
    path.write_bytes(train_vocabulary(prose(200), 328, "base.small.vocab_size"))
    return path


@pytest.fixture(scope="module")
def preset(jax_backend, vocabulary, tmp_path_factory):
    return save_base(vocabulary, tmp_path_factory.mktemp("base") / "small", GEMMA)


LORA = {"method": "lora", "rank": 2, "mesh": (2, 4)}


def spec_of(model, **changes):
    """Return the description of a model with LoRA: of a preset folder, or of sizes; on one device."""
    base = {"model": model, "vocab_size": 328} if isinstance(model, dict) else {"preset": model}
    recipe = LORA | {"precision": "float32", "mesh": (1, 1), "base": base}
    return ModelSpec.of("finetune", "the.run", recipe | changes)


def opened(model, **changes):
    """Return the model of `spec_of`; of sizes, with fresh weights."""
    from tpulm.models import causal
    from tpulm.models.building import open_model

    return open_model(spec_of(model, **changes), causal)[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "qwen2" else pytest.mark.long) for name in FAMILIES]
)
def test_a_family_trains_on_eight_devices(jax_backend, packed, name):
    from tpulm.models import sharding

    trainer = trainer_of("base", model=MODELS[name], vocab_size=328, mesh=(2, 4))
    losses = train(trainer, packed, 0, 4)
    assert losses[-1] < losses[0]
    rows = sharding.partitioning(trainer.run.model, trainer.run.distribution)
    matrices = [row for row in rows if row["path"].rsplit("/", 1)[1] in ("kernel", "embeddings", "reverse_embeddings")]
    assert [row["path"] for row in matrices if set(row["spec"]) - {None} != {"batch", "model"}] == []
    assert [row["note"] for row in rows if row["note"]] == []


def test_a_segment_with_adapters_is_written(jax_backend, packed, tmp_path):
    """To the end: what is written after training reads weights that a step has given away, as adapted kernels do."""
    from tpulm.models import causal
    from tpulm.models.attention import needs_of
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment
    from tpulm.training.segment import Segment
    from tpulm.training.snapshots import Snapshots

    base = {"model": MODELS["qwen2"], "vocab_size": 328}
    spans = {"first": 0, "last": 2, "checkpoint_every": 2, "schedule": {"knots": [[0, 1e-2], [2, 0.0]]}}
    recipe = RECIPE | LORA | {"targets": EVERYTHING, "base": base, "mesh": (1, 1), "run": "x"} | spans
    outputs = {part: str(tmp_path / part) for part in ("weights", "optimizer", "best", "state", "history", "timings")}
    data = partial(training_batch, packed, recipe), partial(held_out_batches, packed, recipe)
    run = build_run(TrainingStep.of("finetune", "the.run", recipe), causal)
    job = Snapshots(None, ""), lambda line: None, str(tmp_path / "log")
    train_segment(run, data, Segment(recipe, outputs, None, *job))
    assert json.loads((tmp_path / "state").read_text())["step"] == 2
    assert needs_of(run.model).head_dim == SIZES["head_dim"]  # it is hidden_dim / num_query_heads


@pytest.mark.parametrize("name", FAMILIES)
def test_peft_adapters_of_all_targets_are_the_same_change(jax_backend, name):
    from tpulm.models.base_precision import leaves

    model = opened(MODELS[name] | {"num_layers": 2}, targets=EVERYTHING)
    draw_lora(model)
    variables = {v.path: np.asarray(v.value) for v in model.trainable_variables}
    tensors, config = peft_adapter.peft(variables, "keras/base")
    modules = {name.split(".", 1)[1] for name in peft_adapter.MODULES.values()}
    assert config["base_model_name_or_path"] == "keras/base"
    assert set(config["target_modules"]) == modules and config["r"] == config["lora_alpha"]
    adapted = [layer for layer in leaves(model.backbone) if getattr(layer, "lora_enabled", False)]
    assert len(adapted) == 2 * 7 and len(tensors) == 2 * 14
    for layer in adapted:
        module, number = peft_adapter.MODULES[layer.name], re.search(r"_(\d+)/", layer.lora_kernel_a.path)[1]
        prefix = f"base_model.model.model.layers.{number}.{module}"
        change = tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"]
        wanted = np.asarray(layer.kernel) - np.asarray(layer._kernel)
        if layer.name in peft_adapter.WITH_HEADS:
            # [heads, hidden, width], in Llama's and its like [hidden, heads, width]
            wanted = (wanted if name.startswith("gemma") else wanted.swapaxes(0, 1)).transpose(0, 2, 1).reshape(-1, 32)
        else:
            wanted = wanted.reshape(-1, wanted.shape[-1]).T
        np.testing.assert_allclose(change, wanted, atol=1e-5)
        assert len(tensors[f"{prefix}.lora_A.weight"]) == config["rank_pattern"].get(module.split(".")[1], config["r"])


def test_an_adapter_of_keras_gives_the_trainers_logits(jax_backend, preset, tmp_path):
    """Loaded as README says."""
    import keras
    import keras_hub
    from tpulm.models.adapters import save_adapters
    from tpulm.training.sharded_arrays import by_path

    changes = {"targets": EVERYTHING, "alpha": 6}
    model = opened(preset, **changes)
    base = logits(model)
    draw_lora(model)
    trained = by_path(model.trainable_variables, [np.asarray(v.value) for v in model.trainable_variables])
    spec = spec_of(preset, **changes)
    files = (tmp_path / f"adapter.lora.{kind}" for kind in ("h5", "json"))
    save_adapters(spec, peft_adapter.scaled(trained, spec.alpha / spec.rank), *files)
    wanted = logits(model)
    assert not np.allclose(base, wanted, atol=1e-2)
    keras.distribution.set_distribution(None)
    loaded = keras_hub.models.CausalLM.from_preset(str(preset))
    loaded.backbone.enable_lora(**json.loads((tmp_path / "adapter.lora.json").read_text()))
    loaded.backbone.load_lora_weights(str(tmp_path / "adapter.lora.h5"))
    np.testing.assert_allclose(logits(loaded), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_a_base_of_another_type_tunes_as_float32_does(jax_backend, preset, single, kind):
    from tpulm.models import sharding

    trainers = {
        name: trainer_of("finetune", base={"preset": preset}, base_precision=name, **LORA) for name in ("float32", kind)
    }
    losses = {name: train(trainer, single, 0, 5) for name, trainer in trainers.items()}
    np.testing.assert_allclose(losses[kind], losses["float32"], rtol=0.01)
    assert losses[kind][0] != losses["float32"][0] and losses[kind][-1] < losses[kind][0]
    run = trainers[kind].run
    rows = sharding.partitioning(run.model, run.distribution)
    types = {row["path"].rsplit("/", 1)[1]: row["dtype"] for row in rows}
    assert types["lora_kernel_a"] == types["lora_kernel_b"] == "float32"
    assert types["kernel"] == types["embeddings"] == kind
    assert types["scale"] == ("float32" if kind == "int8" else "bfloat16")
    if kind == "int8":
        table = next(row for row in rows if row["path"] == "token_embedding/embeddings")
        assert table["bytes_per_device"] == 328 * 32 / 8 and types["kernel_scale"] == "float32"
        # One scale for each output of a matrix; no activation is rounded.
        assert all(layer.inputs_quantizer is None for layer in run.model._flatten_layers() if layer.quantization_mode)


@pytest.mark.parametrize(("name", "target"), [("gemma", "value"), ("qwen2", "ffn")])  # of Keras's two kinds of layers
def test_an_adapted_model_of_bfloat16_loses_nothing(precision, name, target):
    precision("bfloat16")
    model = opened(MODELS[name], precision="bfloat16", targets=[target])
    layer = next(layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False))
    hidden = layer.kernel.shape[-2]
    signs = np.resize([1.0, -1.0], hidden)
    layer._kernel.assign(np.ones(layer.kernel.shape))
    layer.lora_kernel_a.assign(np.broadcast_to(signs[:, None] * 2.0**-10, layer.lora_kernel_a.shape))
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    outputs = np.asarray(layer(np.broadcast_to(signs, (1, 1, hidden)).astype("bfloat16"))).astype("float32")
    np.testing.assert_allclose(outputs, 2 * hidden * 2.0**-10, rtol=0.01)  # of 1 + 2 ** -9, 1 would be left


@pytest.mark.long  # tests/test_causal.py has AdamW, tests/test_muon.py Muon
@pytest.mark.parametrize(
    ("name", "changes"),
    [("adafactor", {"method": "full"}), ("lion", {"base_precision": "int8", "targets": EVERYTHING})],
)
def test_two_segments_are_one_run(preset, single, tmp_path, name, changes):
    trainer = trainer_of("finetune", base={"preset": preset}, optimizer=OPTIMIZERS[name], **LORA | changes)
    losses = train_in_segments(trainer, single, tmp_path, 6)
    assert len(trainer.weights()) > 2 and len(trainer.optimizer()) > 2
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def tuned_and_merged(preset, folder, **changes):
    """Return a model with drawn adapters, and the one into whose weights they are merged."""
    from tpulm.models.adapters import merged_model
    from tpulm.training.sharded_arrays import by_path

    model = opened(preset, alpha=6, **changes)
    draw_lora(model)
    save_arrays(folder / "best", by_path(model.trainable_variables, [v.value for v in model.trainable_variables]))
    return model, merged_model(spec_of(preset, alpha=6, **changes), str(folder / "best"))


def test_a_merged_model_gives_the_trainers_logits(jax_backend, preset, tmp_path):
    """The base is int8; tests/test_tuned_only.py has bfloat16."""
    import keras
    from tpulm.models.preset_folders import load_preset, save_preset

    model, merged = tuned_and_merged(preset, tmp_path, targets=EVERYTHING, base_precision="int8")
    save_preset(merged, tmp_path / "model")
    keras.distribution.set_distribution(None)
    np.testing.assert_allclose(logits(load_preset(tmp_path / "model")), logits(model), atol=1e-4)


def test_adafactor_is_that_of_keras_with_less_state(jax_backend):
    import keras
    from tpulm.models.optimizers import make_optimizer

    recipe = OPTIMIZERS["adafactor"] | {"global_clipnorm": 1.0}
    arguments = {key: value for key, value in recipe.items() if key != "name"}
    draw = np.random.default_rng(0)
    shapes = {"kernel": (4, 6, 8), "bias": (8,)}
    start = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    gradients = [draw.normal(size=shape).astype("float32") for shape in shapes.values()]
    keras.distribution.set_distribution(None)
    found = []
    for optimizer in (keras.optimizers.Adafactor(learning_rate=0.0, **arguments), make_optimizer(recipe)):
        variables = [keras.Variable(array, name=name) for name, array in start.items()]
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        optimizer.build(variables)
        for rate in (0.01, 0.02):
            values = [v.value for v in variables]
            slots = [rate if v is optimizer._learning_rate else v.value for v in optimizer.variables]
            values, slots = optimizer.stateless_apply(slots, gradients, values)
            for variable, value in zip([*variables, *optimizer.variables], [*values, *slots], strict=True):
                variable.assign(value)
        found.append(([np.asarray(v.value) for v in variables], optimizer.variables))
    (theirs, kept), (ours, state) = found
    for a, b in zip(theirs, ours, strict=True):
        assert a.tobytes() == b.tobytes()
    sizes = [sum(int(np.prod(v.shape)) for v in some) for some in (kept, state)]
    # Steps and learning rate, rows, columns, the bias; Keras also has the whole, and two scalars for the bias.
    assert sizes == [2 + 4 * 6 + 4 * 8 + 8 + 4 * 6 * 8 + 2, 2 + 4 * 6 + 4 * 8 + 8]
    assert len({v.path for v in state}) == len(state)


def test_biases_and_scales_are_not_decayed(jax_backend, preset):
    run = trainer_of("finetune", base={"preset": preset}, **LORA | {"method": "full"}).run
    decayed = {v.path.rsplit("/", 1)[1]: run.optimizer._use_weight_decay(v) for v in run.model.trainable_variables}
    assert decayed == {"kernel": True, "embeddings": True, "scale": False}


def test_a_layout_of_a_run_comes_before_the_map(jax_backend, preset):
    from tpulm.models import sharding

    layout = {".*/(query|value)/kernel": [None, "model", None], ".*/query/lora_kernel_b": [None, "batch"]}
    run = trainer_of("finetune", base={"preset": preset}, layout=layout, **LORA).run
    rows = {row["path"]: row for row in sharding.partitioning(run.model, run.distribution)}
    query, key = (rows[f"decoder_block_0/attention/{name}/kernel"] for name in ("query", "key"))
    assert (query["rule"], query["spec"]) == (".*/(query|value)/kernel", [None, "model", None])
    assert query["bytes_per_device"] == 8 * 32 * 4 * 4 / 4 and key["spec"] == ["model", "batch", None]
    a, b = (rows[f"decoder_block_0/attention/query/lora_kernel_{part}"] for part in "ab")
    assert a["spec"] == [None, "model", None] and a["rule"] == query["rule"]  # as the kernel that it is added to
    assert b["spec"] == [None, "batch"]


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ({".*/querry/kernel": ["model", None, None]}, ['".*/querry/kernel"']),
        ({".*/query/kernel": ["model", None]}, ['".*/query/kernel" has 2 axes', "(8, 32, 4)"]),
        ({".*/query/kernel": [None] * 3, ".*query.*kernel": [None] * 3}, ['".*/query/kernel"', '".*query.*kernel"']),
    ],
)
def test_a_layout_that_cannot_be_is_named(jax_backend, preset, layout, named):
    with pytest.raises(UserError, match=r"^the\.run\.layout: ") as error:
        trainer_of("finetune", base={"preset": preset}, layout=layout, **LORA)
    assert all(part in str(error.value) for part in named)


def test_the_preprocessor_of_a_published_gemma3_needs_no_tensorflow(jax_backend, vocabulary, tmp_path):
    import keras
    from tpulm.models.preset_folders import load_preset

    keras.distribution.set_distribution(None)
    folder = save_base(vocabulary, tmp_path / "base", MODELS["gemma3"])
    for file in ("preprocessor.json", "task.json"):  # as keras-hub's own have it
        text = (folder / file).read_text().replace("GemmaCausalLMPreprocessor", "Gemma3CausalLMPreprocessor")
        (folder / file).write_text(text)
    inputs = load_preset(folder).preprocessor.generate_preprocess(["the value"], sequence_length=16)
    ids = open_vocabulary(vocabulary).encode(["the value"])[0]
    assert np.asarray(inputs["token_ids"])[0, : len(ids) + 1].tolist() == [2, *ids]
