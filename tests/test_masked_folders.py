"""Masked models from elsewhere: read as they are published, asked and measured, the start of runs on both backends."""

import json

import h5py
import loopback_hub
import ml_dtypes
import numpy as np
import pytest
import warm
from conftest import write_yaml
from huggingface_hub import constants, file_download
from safetensors.numpy import load_file, save_file
from test_mlm_tensorflow import RECIPE
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tpulm.core.errors import UserError
from tpulm.models.weight_names import POSITIONS, TOKEN_TYPES
from tpulm.specs.artifacts import MODEL_FILES, SPECIAL_TOKENS
from tpulm.specs.scores import read_scores
from tpulm.tokenization.folder import write_settings

HIDDEN, LENGTH = 32, 32
CONFIG = {
    "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "hidden_size": HIDDEN, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": LENGTH + 4, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "dtype": "float32", "transformers_version": "5.23.0",
}  # fmt: skip


def weights(vocabulary):
    """Return the tensors of a RobertaForMaskedLM of CONFIG, drawn at random."""
    inner, tables = CONFIG["intermediate_size"], "roberta.embeddings.{}_embeddings.weight"
    matrices, norms = {"lm_head.dense": (HIDDEN, HIDDEN)}, ["roberta.embeddings.LayerNorm", "lm_head.layer_norm"]
    for layer in (f"roberta.encoder.layer.{number}" for number in range(CONFIG["num_hidden_layers"])):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            matrices[f"{layer}.attention.{part}"] = (HIDDEN, HIDDEN)
        matrices |= {f"{layer}.intermediate.dense": (inner, HIDDEN), f"{layer}.output.dense": (HIDDEN, inner)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    shapes = {"lm_head.bias": (vocabulary,), tables.format("word"): (vocabulary, HIDDEN)}
    for table, key in (("position", "max_position_embeddings"), ("token_type", "type_vocab_size")):
        shapes[tables.format(table)] = (CONFIG[key], HIDDEN)
    for name, shape in (matrices | dict.fromkeys(norms, (HIDDEN,))).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    dice = np.random.default_rng(0)
    return {name: dice.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def tiny_folder(place):
    """Return a folder of transformers below this one, with a tokenizer of words."""
    words = "the of and to a is in if or return value list string object function method class".split()
    vocabulary = {word: number for number, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    folder = place / "given"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_settings(tokenizer, str(folder / "tokenizer_config.json"), str(folder / "special_tokens_map.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(vocabulary)}))
    save_file(weights(len(vocabulary)), folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def given(tmp_path):
    return tiny_folder(tmp_path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub on loopback, from which nothing has been downloaded."""
    with loopback_hub.served() as found:
        template = found.url + "/{repo_id}/resolve/{revision}/{filename}"
        here = {"ENDPOINT": found.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(tmp_path / "cache")}
        for name, value in here.items():  # of this process, which has read the environment
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        environment = {"HF_ENDPOINT": found.url, "HF_HUB_CACHE": here["HF_HUB_CACHE"], "HF_TOKEN": loopback_hub.TOKEN}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield found


def put(server, name, folder, **more):
    repository = server.repositories.setdefault(f"models/{name}", loopback_hub.Repository(True))
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | more
    return repository.commit("main", f"commit {len(repository.commits)}", files)


def run(backend, **place):
    """Return a run that starts from the model at a place, and learns next to nothing."""
    return {
        "backend": backend, "init": place, "steps": 2, "checkpoint_every": 1, "batch_size": 4,
        "learning_rate": 1e-12, "schedule": {"shape": "constant", "warmup_steps": 0},
    }  # fmt: skip


@pytest.mark.long
def test_a_model_from_elsewhere_is_asked_and_measured_and_trained_on(fresh, given, server):
    place = {"pretrained": "me/given", "revision": put(server, "me/given", given)}
    runs = {"asked": place | {"backend": "jax"}}
    runs |= {"on-jax": run("jax", **place), "on-tf": run("tensorflow", **place)}
    config = {
        "corpus": {"source": "python-docs", "max_documents": 300, "held_out": {"validation": 0.02, "test": 0.02}},
        "tokenizer": place,
        "tfrecords": {"sequence_length": LENGTH, "shards": {"train": 1}},
        "mlm": {"runs": runs},
        "prompts": {"fill_mask": ["Return the [MASK] of the list"]},
        "evaluation": {"text": {"masked_documents": 2}},
    }
    write_yaml(fresh / "config.yaml", config)
    fresh("mlm", "evaluation", "--cores", "2")
    results = fresh / "results"
    for pattern in ("mlm/{}/metrics.json", "evaluation/mlm/{}/scores.json"):
        for same in zip(*(read_scores(results / pattern.format(name))[1] for name in runs), strict=True):
            assert len({(score.name, score.items) for score in same}) == 1
            assert [score.value for score in same] == pytest.approx([same[0].value] * 3, rel=1e-4)
    [asked], *others = (json.loads((results / f"mlm/{name}/fill_mask.json").read_text()) for name in runs)
    for [other] in others:
        assert [answer["token"] for answer in other["answers"]] == [answer["token"] for answer in asked["answers"]]
    assert not (results / "mlm/asked/checkpoints").exists()
    assert "results/mlm/asked: ok" in fresh("verify").stdout


# What each backend has of a model before its first step, by PyTorch's names, into a file.
STARTS = {
    "jax": """
import json, sys
from safetensors.numpy import save_file
from tpulm.specs.training_step import TrainingStep
from tpulm.core.files import read_json
from tpulm.models import masked_models
from tpulm.models.weight_names import to_transformers
from tpulm.training import runtime
from tpulm.training import jax_run
folder, out, recipe, manifest = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
runtime.start(1)
known = masked_models.init_recipe(f"{folder}/config.json", manifest, "mlm.runs.x")
step = TrainingStep.of("mlm", "mlm.runs.x", recipe, sequence_length=32, packing="concat", **known)
run = jax_run.build_run(step, masked_models)
masked_models.load_folder(run.model, f"{folder}/model.safetensors")
arrays = {variable.path: variable.numpy() for variable in run.model.trainable_variables}
save_file(to_transformers(arrays, known["vocabulary"]["pad"]), out)
""",
    "tensorflow": """
import json, sys
from safetensors.numpy import save_file
from tpulm.models.transformers_config import init_config
from tpulm.models.masked_folders import pytorch_arrays
from tpulm.training.tensorflow_runtime import start
from tpulm.training.tensorflow_trainer import Trainer
folder, out, recipe, manifest = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
config = init_config(f"{folder}/config.json", manifest, "mlm.runs.x")
trainer = Trainer(start(1, 1), config, recipe, f"{folder}/model.safetensors")
save_file(pytorch_arrays(trainer.weights()), out)
""",
}


@pytest.mark.parametrize("backend", list(STARTS))
def test_a_run_starts_from_the_weights(given, tmp_path, backend):
    recipe = RECIPE | {"mesh": [-1, 1], "microbatches": 1, "steps_per_execution": 1, "remat": False}
    manifest = {"sequence_length": LENGTH, "vocab_size": 20, "special_ids": {"pad": 3}}
    arguments = str(given), str(tmp_path / "out"), json.dumps(recipe)
    warm.run(backend, STARTS[backend], *arguments, json.dumps(manifest))
    found, original = load_file(tmp_path / "out"), load_file(given / "model.safetensors")
    for arrays in (found, original):  # JAX adds the first token type to all positions, of which some are never used
        arrays["positions"] = arrays.pop(POSITIONS)[4:] + arrays.pop(TOKEN_TYPES)[0]
    assert set(original) <= set(found)
    for name, array in original.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)


def test_a_run_does_not_start_from_a_model_of_other_records(given):
    from tpulm.models.masked_models import init_recipe
    from tpulm.models.transformers_config import init_config

    manifest = {"sequence_length": LENGTH, "vocab_size": 20, "special_ids": {"pad": 3}}
    for changed, named in (({"vocab_size": 99}, "22 tokens, .* 99"), ({"sequence_length": 99}, "99")):
        for read in (init_recipe, init_config):
            with pytest.raises(UserError, match=rf"^mlm\.runs\.x\.init.*{named}"):
                read(str(given / "config.json"), manifest | changed, "mlm.runs.x")


@pytest.mark.unit
def test_weights_are_read_as_published(given, tmp_path):
    """In parts, in bfloat16, with the bias of the head under its other name, and a buffer of old versions."""
    from tpulm.models.masked_folders import save_folder

    arrays = load_file(given / "model.safetensors")
    (given / "model.safetensors").unlink()
    arrays["lm_head.decoder.bias"] = arrays.pop("lm_head.bias")
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    buffer = {"roberta.embeddings.position_ids": np.arange(4)[None]}
    files = {name: f"{place % 2}.safetensors" for place, name in enumerate(halves)}
    for file in set(files.values()):
        save_file({name: halves[name] for name in halves if files[name] == file} | buffer, given / file)
    index = {"weight_map": files}
    (given / "model.safetensors.index.json").write_text(json.dumps(index))
    save_folder(given, "mlm.runs.x", "jax", str(tmp_path / "config.json"), str(tmp_path / "model.safetensors"))
    read = load_file(tmp_path / "model.safetensors")
    assert "lm_head.bias" in read and "roberta.embeddings.position_ids" not in read
    for name, array in halves.items():
        np.testing.assert_array_equal(read[name], array.astype(np.float32))
        assert read[name].dtype == np.float32


@pytest.mark.unit
def test_a_model_of_a_hub_is_the_one_of_the_commit(given, server):
    """Neither a later one, nor pickles or code beside it."""
    from tpulm.models.masked_folders import locate

    first = put(server, "me/given", given, **{"pytorch_model.bin": b"pickle", "code.py": b"evil()"})
    put(server, "me/given", given, **{"config.json": b"{}"})
    server.break_off("GET", "model.safetensors", "reset")
    found = locate("me/given", first, "mlm.runs.x is me/given")
    theirs, ours = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (given, found))
    assert ours == theirs
    with pytest.raises(UserError, match=r"^mlm\.runs\.x is me/none at revision .* does not have"):
        locate("me/none", first, "mlm.runs.x is me/none at revision x")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"model_type": "longformer"}, "longformer"),
        ({"model_type": "bert"}, 'config.architecture is "bert"'),
        ({"hidden_act": "relu"}, 'config.hidden_act is "relu"'),
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map"),
    ],
)
def test_what_cannot_be_opened_is_refused(given, tmp_path, change, found):
    from tpulm.models.masked_folders import save_folder

    config = json.loads((given / "config.json").read_text())
    (given / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=rf"^mlm\.runs\.x.*{found}"):
        save_folder(given, "mlm.runs.x", "jax", str(tmp_path / "config.json"), str(tmp_path / "model.safetensors"))
    assert not [name for name in MODEL_FILES if (tmp_path / name).exists()]


@pytest.mark.unit
def test_weights_without_a_head_or_in_a_pickle_are_refused(given, tmp_path):
    from tpulm.models.masked_folders import read_weights

    arrays = {name: array for name, array in load_file(given / "model.safetensors").items() if "lm_head" not in name}
    save_file(arrays, given / "model.safetensors")
    with pytest.raises(UserError, match=r"^mlm\.runs\.x.* head "):
        read_weights(given, "mlm.runs.x")
    words = weights(20)
    words["roberta.embeddings.word_embeddings.weight"][3, 0] = np.nan
    save_file(words, given / "model.safetensors")
    with pytest.raises(UserError, match=r"^mlm\.runs\.x.*word_embeddings\.weight .*NaN"):
        read_weights(given, "mlm.runs.x")
    (given / "model.safetensors").unlink()
    (given / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"^mlm\.runs\.x.*model\.safetensors"):
        read_weights(given, "mlm.runs.x")


@pytest.mark.unit
def test_weights_of_tensorflow_are_read(tmp_path):
    """As transformers 4 saved them: in HDF5, below the groups of layers, matrices the other way round."""
    from tpulm.models.masked_folders import read_weights

    dense, words = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((5, 2), np.float32)
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        file["lm_head/tf_roberta_for_masked_lm/lm_head/dense/kernel:0"] = dense
        file["roberta/tf_roberta_for_masked_lm/roberta/embeddings/word_embeddings/weight:0"] = words
    found = read_weights(tmp_path, "mlm.runs.x")
    assert set(found) == {"lm_head.dense.weight", "roberta.embeddings.word_embeddings.weight"}
    np.testing.assert_array_equal(found["lm_head.dense.weight"], dense.T)
    (tmp_path / "tf_model.h5").write_bytes(b"no HDF5")
    with pytest.raises(UserError, match=r"^mlm\.runs\.x.*tf_model\.h5"):
        read_weights(tmp_path, "mlm.runs.x")
