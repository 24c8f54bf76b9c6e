"""Base models and tuning: tokens, records, the training step, sharding, adapters, presets, samples."""

import math
import os
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import warm
from conftest import open_vocabulary
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec
from tpulm.core.arrays import load_arrays, save_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, write_json
from tpulm.core.random_streams import generator
from tpulm.records import causal_batches
from tpulm.records.reader import Records
from tpulm.records.shards import merge_sidecars, write_shard
from tpulm.records.token_counts import count_tokens, loss_of_frequencies
from tpulm.specs.causal_families import constructor
from tpulm.specs.training_step import CausalArchitecture, TrainingStep
from tpulm.tokenization import sentencepiece_bpe
from tpulm.tokenization.tokenizer import CLOSING, describe, tokenize

SIZES = {
    "num_layers": 1, "num_query_heads": 8, "num_key_value_heads": 8,
    "hidden_dim": 32, "intermediate_dim": 64, "head_dim": 4,
}  # fmt: skip
OPTIMIZER = {"weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "global_clipnorm": 1.0}
CODE = "def total(items):\n    if not items:\n        return 0\n    return sum(items)  # ünusual\n"
WORDS = "the of value function returns object when list given name and or is module class string".split()


def prose(documents, seed=0, words=12):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=words)) + "." for _ in range(documents)]


@pytest.fixture(scope="module")
def jax_backend():
    """Keras on JAX with eight virtual devices, see `warm.run`; afterwards other tests may import TensorFlow again."""
    from tpulm.compat import optional_imports
    from tpulm.training import runtime

    environment = dict(os.environ)
    modules = {name: sys.modules[name] for name in optional_imports.TENSORFLOW if name in sys.modules}
    os.environ |= warm.QUICK
    runtime.start(cpu_threads=1, host_device_count=8)
    import jax
    import keras

    assert len(jax.devices()) == 8
    assert keras.backend.backend() == "jax"
    yield runtime
    runtime.set_precision("float32")
    keras.distribution.set_distribution(None)
    os.environ.clear()
    os.environ.update(environment)
    for name in optional_imports.TENSORFLOW:
        del sys.modules[name]
    sys.modules.update(modules)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.spm"
    path.write_bytes(sentencepiece_bpe.train_vocabulary(prose(200), 330, "base.small.vocab_size"))
    return path


def records_of(vocabulary, folder, texts, packing, length=16, responses=None):
    """Write records as the workflow does; return them. Responses are characters of each text, as (start, stop)."""
    tokenizer = open_vocabulary(vocabulary)
    layout = {"sequence_length": length, "tokens_per_record": length + 1, "packing": packing}
    layout |= {"responses": True} if responses else {}
    keys = {"shards_key": "base.small.shards", "length_key": "sequence_length"}
    half = len(texts) // 2
    spans = responses and [responses[:half], responses[half:]]
    documents = tokenize([texts[:half], texts[half:]], tokenizer, spans)
    target = folder / "train/00000-of-00001.tfrecord"
    sidecar = write_shard(documents, layout | keys, tokenizer.special["pad"], CLOSING, target, len(texts))
    sidecar["vocabulary"] = describe(tokenizer, vocabulary)
    write_json(folder / "manifest.json", merge_sidecars({"train": [sidecar]}, layout))
    return Records(folder / "manifest.json", "train")


@pytest.fixture(scope="module")
def packed(vocabulary, tmp_path_factory):
    return records_of(vocabulary, tmp_path_factory.mktemp("packed"), prose(30) + prose(30, 1), "concat")


@pytest.fixture(scope="module")
def single(vocabulary, tmp_path_factory):
    """Records of a document each."""
    return records_of(vocabulary, tmp_path_factory.mktemp("single"), prose(30) + prose(30, 1), "pad")


@pytest.fixture(scope="module")
def preset(jax_backend, vocabulary, tmp_path_factory):
    return save_base(vocabulary, tmp_path_factory.mktemp("base") / "small", SIZES)


def save_base(vocabulary, folder, sizes):
    import keras
    from tpulm.compat.keras import skip_initialization
    from tpulm.models.causal import construct, draw_causal_weights
    from tpulm.models.preset_folders import make_preprocessor, save_preset

    keras.distribution.set_distribution(None)
    keras.backend.clear_session()  # which also restarts the numbers in automatic names, as a new process does
    with skip_initialization():
        model = construct(CausalArchitecture(*constructor(sizes), open_vocabulary(vocabulary).size))
    draw_causal_weights(model.backbone, 0)
    model.preprocessor = make_preprocessor(sizes.get("architecture", "gemma"), vocabulary, 16)
    save_preset(model, folder)
    return folder


def evaluate(trainer, records):
    return trainer.evaluate(causal_batches.held_out_batches(records, {"batch_size": 4, "microbatches": 1}))


RECIPE = {
    "seed": 0, "batch_size": 4, "sequence_length": 16, "microbatches": 1, "steps_per_execution": 1, "remat": False,
    "precision": "float32", "optimizer": OPTIMIZER,
}  # fmt: skip
LORA = {"method": "lora", "rank": 2}


def tuner(preset, mesh=(1, 8), **changes):
    return trainer_of("finetune", base={"preset": preset}, mesh=mesh, **LORA | changes)


def tuned(preset, mesh=(1, 8)):
    """Return the model of a preset with LoRA, and how it is sharded."""
    run = tuner(preset, mesh).run
    return run.model, run.distribution


def base_trainer(mesh, sizes=SIZES, **changes):
    return trainer_of("base", model=sizes, vocab_size=330, mesh=mesh, **changes)


def trainer_of(stage, **changes):
    from tpulm.models import causal
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import Trainer

    return Trainer(build_run(TrainingStep.of(stage, "the.run", RECIPE | changes), causal))


def train(trainer, records, first, last):
    from tpulm.training.history import History

    rates = np.linspace(1e-2, 1e-3, 100, dtype=np.float32)[first:last]
    history = History(first, last, 4 * records.sequence_length, lambda message: None)
    trainer.train(partial(causal_batches.training_batch, records, RECIPE), first, rates, history)
    return [float(row.split(",")[1]) for row in history.rows]


def draw_lora(model, seed=0):
    """Give every LoRA variable a value, B included, which starts as zero."""
    draw = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(draw.normal(size=variable.shape).astype("float32") * 0.3)


def logits(model, length=12):
    import jax

    token_ids = np.random.default_rng(1).integers(4, 300, (2, length)).astype("int32")
    function = jax.jit(lambda ids: model({"token_ids": ids, "padding_mask": jax.numpy.ones_like(ids)}))
    return np.asarray(function(token_ids))


def test_a_vocabulary_repeats_keeps_code_and_is_of_the_kind_that_llama_cpp_reads(vocabulary):
    assert sentencepiece_bpe.train_vocabulary(prose(200), 330, "") == vocabulary.read_bytes()
    assert ModelProto.FromString(vocabulary.read_bytes()).trainer_spec.model_type == TrainerSpec.BPE
    tokenizer = open_vocabulary(vocabulary)
    assert tokenizer.special == {"pad": 0, "eos": 1, "bos": 2}
    [ids] = tokenizer.encode([CODE])
    assert tokenizer.decode(ids) == CODE
    pieces = [tokenizer.piece(i) for i in ids]
    assert pieces.count("\n") == 4 and "\u2581" * 8 in pieces
    assert "".join(sentencepiece_bpe.lines("a" * 9_001)) == "a" * 9_001
    assert max(map(len, sentencepiece_bpe.lines("a" * 9_001))) == sentencepiece_bpe.LINE_CHARACTERS


@pytest.mark.parametrize(("size", "allowed"), [(5000, "at most"), (280, "at least")])
def test_a_vocabulary_size_that_cannot_be_is_named(size, allowed):
    with pytest.raises(UserError, match=rf"^base\.small\.vocab_size is {size}; .* {allowed} \d+"):
        sentencepiece_bpe.train_vocabulary(prose(200), size, "base.small.vocab_size")


def test_records_of_tuning_are_those_of_keras_hub(preset, vocabulary, tmp_path):
    import keras_hub

    texts = [*prose(5), CODE, "the", ""]
    records = records_of(vocabulary, tmp_path, texts, "pad")
    [batch] = causal_batches.held_out_batches(records, {"batch_size": len(texts), "microbatches": 1})
    found, mask = batch["tokens"], batch["mask"]
    preprocessor = keras_hub.models.GemmaCausalLMPreprocessor.from_preset(str(preset), sequence_length=16)
    inputs, labels, weights = preprocessor(texts)
    assert (found[:, :-1] == np.asarray(inputs["token_ids"])).all() and (found[:, 1:] == np.asarray(labels)).all()
    assert (mask[:, :-1] == np.asarray(inputs["padding_mask"])).all() and (mask[:, 1:] == np.asarray(weights)).all()


def test_held_out_records_are_spread():
    assert causal_batches.held_out_indices(5).tolist() == [0, 1, 2, 3, 4]
    many = causal_batches.held_out_indices(100_000)
    assert len(many) == causal_batches.HELD_OUT_RECORDS and many[0] == 0 and many[-1] == 99_999


def train_in_segments(trainer, records, folder, last):
    """Train to step `last`, at once and in two segments, which have to give the same bytes; return the losses.

    Led astray between the segments, the trainer goes on from what was saved.
    """

    def save(name):
        for part, arrays in (("weights", trainer.weights()), ("optimizer", trainer.optimizer())):
            save_arrays(folder / f"{name}.{part}", arrays)

    def load(name):
        trainer.load(*(load_arrays(folder / f"{name}.{part}") for part in ("weights", "optimizer")), "checkpoint")

    save("start")
    losses = train(trainer, records, 0, last)
    save("whole")
    load("start")
    first = train(trainer, records, 0, last // 2)
    save("half")
    load("whole")
    load("half")
    assert first + train(trainer, records, last // 2, last) == losses
    save("second")
    for part in ("weights", "optimizer"):
        assert (folder / f"second.{part}").read_bytes() == (folder / f"whole.{part}").read_bytes()
        assert (folder / f"half.{part}").read_bytes() != (folder / f"whole.{part}").read_bytes()
    return losses


def test_two_segments_are_one_run_however_a_step_is_worked_through(jax_backend, single, tmp_path):
    """With dropout, whose state must go on: gradients computed again draw the same, and so do several steps at once."""
    sizes = SIZES | {"dropout": 0.1}
    plain, other = base_trainer((2, 4), sizes), base_trainer((2, 4), sizes, steps_per_execution=3, remat=True)
    losses = train_in_segments(plain, single, tmp_path, 6)
    np.testing.assert_allclose(train(other, single, 0, 6), losses, rtol=2e-5)
    for name, array in plain.weights().items():
        np.testing.assert_allclose(other.weights()[name], array, atol=2e-4)


@pytest.fixture
def precision(jax_backend):
    """Set the precision of a run; float32 again afterwards."""
    yield jax_backend.set_precision
    jax_backend.set_precision("float32")


def test_bfloat16_is_for_lora(precision, preset, single):
    from tpulm.models.sampling import Generator

    precision("bfloat16")
    trainer = tuner(preset, (1, 1), precision="bfloat16")
    assert {str(v.dtype) for v in trainer.run.model.trainable_variables} == {"float32"}
    assert {str(v.dtype) for v in trainer.run.model.non_trainable_variables} == {"bfloat16"}
    greedy = {"sampler": "greedy", "samples": 1, "max_new_tokens": 4}
    ((sample,),) = Generator(trainer.run.model, greedy, trainer.run.distribution.num_model_replicas)(["the"])
    assert sample.text and sample.cut
    before = {name: np.array(array) for name, array in trainer.weights().items()}
    train(trainer, single, 0, 2)
    assert any((before[name] != array).any() for name, array in trainer.weights().items())


def test_a_mesh_of_eight_computes_what_one_device_does(jax_backend, vocabulary, tmp_path):
    """With documents apart, in parts of a batch, with gradients computed again."""
    records = records_of(vocabulary, tmp_path, prose(60), "segments")
    losses, evaluations = [], []
    for mesh, changes in (((1, 1), {}), ((2, 4), {"microbatches": 2, "remat": True})):
        trainer = base_trainer(mesh, packing="segments", **changes)
        losses.append(train(trainer, records, 0, 3))
        evaluations.append(evaluate(trainer, records))
        assert trainer.dispatch._cache_size() == 1  # compiled once, also for what a step on one device returns
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert evaluations[1] == pytest.approx(evaluations[0], rel=1e-4)
    [every] = causal_batches.held_out_batches(records, {"batch_size": len(records), "microbatches": 1})
    inside = every["segment_ids"][:, 1:] == every["segment_ids"][:, :-1]
    assert 0 < inside.sum() < inside.size and (every["tokens"][:, 1:][~inside] == 2).all()  # <bos> is not predicted
    assert [evaluation["predictions"] for evaluation in evaluations] == [inside.sum()] * 2
    read, *_ = causal_batches.causal_lm(every)  # tests/test_segments.py: what a model makes of these numbers
    assert (read["padding_mask"] == every["segment_ids"][:, :-1]).all()
    counts = count_tokens(records, lambda *asked: causal_batches.predicted_ids(causal_batches.arrays(*asked)))
    assert (counts == np.bincount(every["tokens"][:, 1:][inside], minlength=len(counts))).all()
    shares = counts / counts.sum()
    expected = -(shares * np.log((counts + 1) / (counts.sum() + len(counts)))).sum()
    assert loss_of_frequencies(counts, counts) == pytest.approx(expected)


def test_lora_trains_only_adapters_which_are_drawn_by_a_key(preset, single):
    """And by no state of the process: what another library draws before changes nothing."""
    trainer = tuner(preset)
    model = trainer.run.model
    drawn = [v for v in model.trainable_variables if v.path.endswith("lora_kernel_a")]
    for index, variable in enumerate(drawn):
        limit = (6 / math.prod(variable.shape[:-1])) ** 0.5
        uniform = generator("adapter", RECIPE["seed"], index).random(variable.shape, np.float32)
        np.testing.assert_allclose(np.asarray(variable.value), limit * (2 * uniform - 1), rtol=1e-5)
    frozen = [np.asarray(v.value) for v in model.non_trainable_variables]
    train(trainer, single, 0, 3)
    assert {name.rsplit("/", 1)[1] for name in trainer.weights()} == {"lora_kernel_a", "lora_kernel_b"}
    assert len(trainer.weights()) == 2 * len(drawn) == 2 * 2  # A and B, of query and value
    assert all((a == np.asarray(v.value)).all() for a, v in zip(frozen, model.non_trainable_variables, strict=True))


def test_a_folder_is_there_at_every_moment_in_which_it_is_replaced(jax_backend, tmp_path, monkeypatch):
    from tpulm.models import preset_folders as models

    folder, deleted, remove = tmp_path / "preset", [], shutil.rmtree
    monkeypatch.setattr(models.shutil, "rmtree", lambda path, **more: (deleted.append(path), remove(path, **more)))
    for name in ("one", "two"):
        with models.atomic_folder(folder) as partial:
            (partial / name).touch()
    assert [path.name for path in folder.iterdir()] == ["two"] and list(tmp_path.iterdir()) == [folder]
    assert deleted and folder not in deleted


@pytest.fixture(scope="module")
def answered(request, vocabulary, tmp_path_factory):
    """Records of documents of which the second half is the response; that of one is cut off."""
    texts = [*prose(40), " ".join(prose(9, 2))]
    spans = [[(len(text) // 2, len(text))] for text in texts]
    return records_of(vocabulary, tmp_path_factory.mktemp("answered"), texts, request.param, responses=spans)


# tests/test_responses.py holds the masks of each packing against the responses.
@pytest.mark.parametrize("answered", ["segments"], indirect=True)
def test_only_responses_are_learned(jax_backend, answered):
    import jax
    from tpulm.records.causal_batches import causal_lm as task
    from tpulm.training.train_step import make_grad_fn

    packing = answered.manifest["packing"]
    trainer = base_trainer((1, 1), packing=packing, responses=True)
    run, values = trainer.run, (trainer.state.trainable, trainer.frozen, trainer.state.random)
    batch = causal_batches.training_batch(answered, RECIPE | {"batch_size": 8}, 0)
    shapes = {name: shape for name, (shape, _) in run.step.record_arrays.items()}
    assert {name: array.shape[1:] for name, array in batch.items()} == shapes

    weight = np.float32(batch["loss_mask"][:, 1:].sum())
    (loss, (accuracy, _)), gradients = jax.jit(make_grad_fn(run.model, task))(*values, batch, weight)
    assert any((np.asarray(array) != 0).any() for array in gradients)
    inputs, labels, _ = task(batch)
    forward = jax.jit(lambda *values: run.model.stateless_call(*values, inputs, training=False)[0])
    found = np.asarray(forward(*values[:2]), np.float64)
    losses = np.log(np.exp(found).sum(-1)) - np.take_along_axis(found, np.asarray(labels)[..., None], -1)[..., 0]
    counted = batch["loss_mask"][:, 1:] * batch["mask"][:, 1:]
    np.testing.assert_allclose(loss, (losses * counted).sum() / counted.sum(), rtol=1e-5)
    right = (found.argmax(-1) == labels)[counted > 0]
    assert accuracy == pytest.approx(right.mean()) and len(right) == weight
    assert evaluate(trainer, answered)["predictions"] == answered.manifest["splits"]["train"]["loss_tokens"]


@pytest.mark.parametrize("answered", ["pad"], indirect=True)
def test_responses_weigh_in_microbatches_as_in_the_whole_batch(preset, answered):
    """A batch without a response changes nothing."""
    from tpulm.training.history import History

    whole, parts = (tuner(preset, (1, 1), packing="pad", responses=True, microbatches=parts) for parts in (1, 2))
    np.testing.assert_allclose(train(parts, answered, 0, 4), train(whole, answered, 0, 4), rtol=2e-5)
    answers = answered.features(np.arange(len(answered)), ["loss_mask"])["loss_mask"][:, 1:].any(1)
    silent, history = np.full(4, np.flatnonzero(~answers)[0]), History(4, 5, 1, lambda message: None)
    before = {name: np.array(array) for name, array in whole.weights().items()}
    whole.train(lambda step, rows: causal_batches.arrays(answered, silent, tuple), 4, np.zeros(1, "f4"), history)
    assert history.rows == ["5,0,0,0,0\n"]
    assert all((array == before[name]).all() for name, array in whole.weights().items())


def test_a_checkpoint_of_another_model_is_refused(preset, single):
    trainer = tuner(preset)
    weights = {name: array[..., :1] for name, array in trainer.weights().items()}
    with pytest.raises(UserError, match=r"^old\.safetensors "):
        trainer.load(weights, trainer.optimizer(), "old.safetensors")


def test_partitioning_follows_the_layout_map(preset):
    from tpulm.models import sharding

    model, distribution = tuned(preset)
    rows = {row["path"]: row for row in sharding.partitioning(model, distribution)}
    query = rows["decoder_block_0/attention/query/kernel"]
    assert query["rule"].startswith("decoder_block") and query["shape"] == [8, 32, 4]
    assert not query["trainable"] and rows["decoder_block_0/attention/query/lora_kernel_a"]["trainable"]
    assert rows["final_normalization/scale"]["rule"] is None
    # 330 pieces cannot be divided by eight.
    note = rows["token_embedding/embeddings"]["note"]
    assert note.startswith("dimension 0 of size 330 cannot be divided over 8 devices")


def test_an_unsharded_variable_is_found(preset):
    from jax import device_put
    from jax.sharding import NamedSharding, PartitionSpec
    from tpulm.models import sharding

    model, distribution = tuned(preset)
    victim = next(v for v in model.variables if v.path == "decoder_block_0/ffw_gating/kernel")
    whole = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())
    victim._value = device_put(victim.value, whole)
    with pytest.raises(UserError, match="decoder_block_0/ffw_gating/kernel"):
        sharding.check_shardings(model.variables, distribution)


def test_meshes(jax_backend):
    from tpulm.models.sharding import mesh_shape

    assert mesh_shape([1, -1], 8, "cpu", "m") == (1, 8) and mesh_shape([-1, 2], 8, "cpu", "m") == (4, 2)
    assert mesh_shape([1, 1], 8, "cpu", "m") == (1, 1)
    for mesh in ([1, 16], [3, -1]):
        with pytest.raises(UserError, match=r"^finetune\.runs\.python\.mesh is \[.* 8 cpu"):
            mesh_shape(mesh, 8, "cpu", "finetune.runs.python.mesh")


def test_preset_loads_and_repeats(preset, vocabulary, tmp_path):
    import keras
    from tpulm.models.preset_folders import load_preset

    again = fingerprints(save_base(vocabulary, tmp_path / "again", SIZES))
    assert again == fingerprints(preset) and {"config.json", "assets/tokenizer/vocabulary.spm"} <= set(again)
    keras.distribution.set_distribution(None)
    model = load_preset(preset)
    assert type(model).__name__ == "GemmaCausalLM"
    by_keras, ours = model.preprocessor.tokenizer, open_vocabulary(preset)
    assert [list(map(int, by_keras(text))) for text in (CODE, "the")] == ours.encode([CODE, "the"])
    special = {"bos": by_keras.start_token_id, "eos": by_keras.end_token_id, "pad": by_keras.pad_token_id}
    assert (by_keras.vocabulary_size(), special) == (ours.size, ours.special)


def test_fetching_says_what_is_wrong(jax_backend, monkeypatch, preset):
    import huggingface_hub
    import keras_hub
    from tpulm.compat.keras_hub import built_in_presets
    from tpulm.config.checks import WITHOUT_COUNTERPART
    from tpulm.config.model_sizes import preset_parameters
    from tpulm.models.presets import is_keras_preset, locate

    assert locate(str(preset), None, "base.x.preset is it") == preset and is_keras_preset(preset)
    # The config is held against a list of them; `make presets` writes it.
    known = {
        name: preset["metadata"]["params"]
        for name, preset in keras_hub.models.CausalLM.presets.items()
        if not name.startswith(WITHOUT_COUNTERPART)
    }
    assert preset_parameters() == known
    assert set(known) <= set(built_in_presets())

    def no_network(*arguments, **names):
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with pytest.raises(UserError, match=r"^base\.x\.preset is hf://google/gemma-2b, .*no route to host\)"):
        locate("hf://google/gemma-2b", "0" * 40, "base.x.preset is hf://google/gemma-2b")


def test_samples_repeat(preset):
    from tpulm.models.sampling import Generator

    model, distribution = tuned(preset, (2, 4))
    recipe = {"sampler": "top_p", "p": 0.9, "temperature": 1.0, "max_length": 12, "samples": 3, "seed": 0}
    generate = Generator(model, recipe, distribution.num_model_replicas)
    first = generate(["the", "of a value"])
    assert [len(samples) for samples in first] == [3, 3]
    assert generate(["the", "of a value"]) == first and len(set(first[0])) > 1
    draw_lora(model)
    assert generate(["the", "of a value"]) != first


def test_special_tokens_of_a_prompt_are_no_part_of_its_samples(jax_backend):
    import keras_hub
    from tpulm.models.sampling import Generator

    pieces = ["a", "b", "\u0120", "\u010a", "ab"]
    pieces += [f"<|{name}|>" for name in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id")]
    tokenizer = keras_hub.tokenizers.Llama3Tokenizer({piece: i for i, piece in enumerate(pieces)}, ["a b"])
    sizes = {"num_layers": 1, "num_query_heads": 1, "num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = keras_hub.models.Llama3Backbone(vocabulary_size=len(pieces), **sizes)
    model = keras_hub.models.Llama3CausalLM(backbone, keras_hub.models.Llama3CausalLMPreprocessor(tokenizer))
    recipe = {"sampler": "top_k", "k": 5, "temperature": 1.0, "max_length": 20, "samples": 8, "seed": 0}
    prompt, generate = "<|start_header_id|>ab<|end_header_id|>\nab a", Generator(model, recipe, 1)
    (samples,) = generate([prompt])
    for variable, state in zip(generate.sampler.variables, generate.states, strict=True):
        variable.assign(state)
    assert [found.text for found in samples] == model.generate(8 * [prompt], max_length=20, strip_prompt=True)
    assert any(found.text for found in samples)


def test_limits_of_generated_texts(preset):
    """A limit of new tokens holds for each prompt; a prompt that leaves no room is refused; what is cut says so."""
    from tpulm.models.sampling import Generator

    model, prompts = tuned(preset, (1, 1))[0], ["the", "the value of a value of a value"]
    greedy = {"sampler": "greedy", "samples": 1}
    few, many = (Generator(model, greedy | {"max_new_tokens": most}, 1) for most in (3, 12))
    (short,), (second,) = few(prompts)
    # Each generator keeps its own limit and function, though another one has the model meanwhile.
    for one, other in zip((short, second), (found for (found,) in many(prompts)), strict=True):
        assert other.text.startswith(one.text) and len(other.text) > len(one.text) and one.cut
    assert few(prompts) == [[short], [second]]
    tokens = len(model.preprocessor.tokenizer(f"the{short.text}")) - len(model.preprocessor.tokenizer("the"))
    assert tokens == 3 and short.response == short.text.strip()
    with pytest.raises(UserError, match=r'^the prompt "the value.*generation\.max_length is 5 .*max_new_tokens'):
        Generator(model, greedy | {"max_length": 5}, 1)(prompts)
