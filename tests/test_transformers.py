"""Causal models in folders of transformers: the same logits and ids there, whatever the family."""

import ast
import io
import json
import re

import numpy as np
import pytest
import test_causal
import test_lora
from conftest import ROOT, open_vocabulary
from openers import LOCKS
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from test_causal import draw_lora, prose, save_base
from test_lora import EVERYTHING, MODELS, opened
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, write_json
from tpulm.models import peft as peft_adapter
from tpulm.models.tensor_files import Tensor, save_shards
from tpulm.specs.artifacts import SHARD_INDEX
from tpulm.specs.causal_families import FAMILIES
from tpulm.specs.causal_vocabularies import VOCABULARY_KINDS
from tpulm.tokenization.conversion import save_folder
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary
from tpulm.tokenization.tokenizer import completion_mask
from tpulm.tokenization.training import train_byte_level

jax_backend, preset, vocabulary = test_causal.jax_backend, test_lora.preset, test_lora.vocabulary

# Some heads share a key; layers with and without a window, shorter than the text. On JAX, keras-hub gives a Qwen
# none, whatever it says.
WINDOWS = {
    "gemma2": {"num_layers": 2, "sliding_window_size": 5},
    "gemma3": {"num_layers": 7, "sliding_window_size": 5, "global_rope_scaling_factor": 8.0},
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window_attention": True, "sliding_window_size": 5},
    "qwen3": {"sliding_window_size": 5},
}
SIZES = {name: MODELS[name] | {"num_layers": 2, "num_key_value_heads": 2} | WINDOWS.get(name, {}) for name in FAMILIES}
AS_LLAMA = {"llama3": "Llama", "qwen2": "Llama"}  # of Qwen 2 those with a vocabulary that is no byte-level one
OF_BYTES = [f"{name} of bytes" for name, kind in VOCABULARY_KINDS.items() if kind.byte_level]
TEXTS = ["the value of  the function", "def f(x):\n    return x  # é, 漢", " begins with a space, 1,234 times\n\n\tx"]


def export(preset, folder):
    from tpulm.models.preset_folders import load_on_host
    from tpulm.models.transformers_causal import tensors_of, transformers_config

    tokenizer = open_vocabulary(preset)
    folder.mkdir(parents=True)
    model = load_on_host(preset)
    write_json(folder / "config.json", transformers_config(model, tokenizer.special, tokenizer.byte_level))
    save_folder(tokenizer, preset, folder)
    save_shards(folder, tensors_of(model, tokenizer.byte_level), 50_000)
    return model


def preset_of(name, folder):
    """Write a vocabulary and a base model of a family, maybe " of bytes", below a folder; return both paths."""
    family, where = name.split()[0], "base.small.vocab_size"
    if name in OF_BYTES:
        vocabulary = folder / f"{name}.json"
        train_byte_level([prose(200)], VOCABULARY_KINDS[family].byte_level, 328, where).save(str(vocabulary))
    else:
        marks = [VOCABULARY_KINDS[family].bos, VOCABULARY_KINDS[family].eos]
        vocabulary = folder / f"{name}.spm"
        vocabulary.write_bytes(train_vocabulary(prose(200), 328, where, marks=tuple(marks)))
    return vocabulary, save_base(vocabulary, folder / f"{name}-preset", SIZES[family])


def opening_of(tokenizer):
    """Return the ids before a text: that of <bos>, where there is one."""
    return [] if tokenizer.special["bos"] is None else [tokenizer.special["bos"]]


def check_same(model, other):
    ignored = ["name", "image_size"]  # which only models with an encoder of images use
    if "Qwen" in type(model).__name__:  # see WINDOWS
        ignored += ["sliding_window_size", "use_sliding_window_attention"]
    one, two = (found.backbone.get_config() | dict.fromkeys(ignored) for found in (model, other))
    assert type(model) is type(other) and one == two
    for a, b in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(np.asarray(a.value), np.asarray(b.value), atol=1e-6, err_msg=a.path)


def function_of(model):
    """Return the compiled function from ids to logits, as a training step calls the model."""
    import jax
    import keras

    keras.distribution.set_distribution(None)
    variables = [[v.value for v in group] for group in (model.trainable_variables, model.non_trainable_variables)]

    @jax.jit
    def function(values, ids, mask):
        return model.stateless_call(*values, {"token_ids": ids, "padding_mask": mask}, training=True)[0]

    return lambda ids: np.asarray(function(variables, np.array([ids], "int32"), np.ones((1, len(ids)), "int32")))[0]


def logits(model, ids):
    return function_of(model)(ids)


def check_greedy(preset, length):
    """Check that texts of a model follow its logits: of prompts of different lengths, with padding after them."""
    from tpulm.models.preset_folders import load_preset
    from tpulm.models.sampling import Generator

    tokenizer, model = open_vocabulary(preset), load_preset(preset)
    prompts, recipe = ["the value", "the value of a list is given"], {"sampler": "greedy", "samples": 1}
    generated, function = Generator(model, recipe | {"max_length": length}, 1)(prompts), function_of(model)
    for prompt, [continuation] in zip(prompts, generated, strict=True):
        ids = [*opening_of(tokenizer), *tokenizer.encode([prompt])[0]]
        first = len(ids)
        while len(ids) < length and ids[-1] != tokenizer.special["eos"]:
            ids.append(int(function([*ids, *[0] * (length - len(ids))])[len(ids) - 1].argmax()))
        new = np.array(ids[first:])
        answer = model.preprocessor.generate_postprocess({"token_ids": new, "padding_mask": new >= 0})
        assert answer.strip() == continuation.response


@pytest.mark.unit
def test_large_weights_are_several_files_with_an_index(tmp_path):
    arrays = {f"w{number}": np.full((10, 10), number, "float32") for number in range(5)}
    tensors = {name: Tensor.of(array.shape, 4, lambda array=array: array) for name, array in arrays.items()}
    (tmp_path / "one").mkdir()
    save_shards(tmp_path / "one", tensors)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["model.safetensors"]
    save_shards(tmp_path, tensors, 800)
    index = json.loads((tmp_path / SHARD_INDEX).read_text())
    assert index["metadata"] == {"total_size": 2000}
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for name, file in index["weight_map"].items():
        assert (load_file(tmp_path / file)[name] == arrays[name]).all()


def test_a_folder_has_the_same_bytes_each_time(jax_backend, preset, tmp_path):
    for name in ("a", "b"):
        export(preset, tmp_path / name)
    assert fingerprints(tmp_path / "a") == fingerprints(tmp_path / "b")
    vocabulary = preset / "assets/tokenizer/vocabulary.spm"
    assert (tmp_path / "a/tokenizer.model").read_bytes() == vocabulary.read_bytes()


def test_the_type_of_the_weights_is_that_of_the_preset(jax_backend, preset, tmp_path):
    from tpulm.models.preset_folders import load_preset, save_preset

    save_preset(load_preset(preset, "bfloat16"), tmp_path / "preset")
    export(tmp_path / "preset", tmp_path / "folder")
    header = next((tmp_path / "folder").glob("*.safetensors")).read_bytes()[8:400]
    assert b'"BF16"' in header and json.loads((tmp_path / "folder/config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.unit
@pytest.mark.parametrize(("family", "changes"), [("Gemma3", {"use_query_key_norm": False}), ("GPT2", {})])
def test_what_transformers_has_no_setting_for_is_named(family, changes):
    from tpulm.models.transformers_causal import refuse_unknown

    known = dict.fromkeys(("use_query_key_norm", "use_post_ffw_norm", "use_post_attention_norm"), True)
    none = ("use_sliding_window_attention", "attention_logit_soft_cap", "final_logit_soft_cap")
    none += ("vision_encoder", "is_embedding_model", "use_bidirectional_attention")
    with pytest.raises(UserError, match=f"^a {family}Backbone.*{''.join(changes)}"):
        refuse_unknown(f"{family}Backbone", dict.fromkeys(none) | known | changes)


def texts_to_read():
    draw = np.random.default_rng(0)
    letters = list("abe \n\t▁<>é漢😀0x41") + ["the ", "    "]
    odd = ["".join(draw.choice(letters, draw.integers(1, 12))) for _ in range(300)]
    return [*prose(200), *TEXTS, "", " ", " " * 100, *odd]


def sentencepiece_of(folder, **options):
    proto, texts = io.BytesIO(), iter(prose(200))
    SentencePieceTrainer.train(sentence_iterator=texts, model_writer=proto, minloglevel=2, **options)
    (folder / "vocabulary.spm").write_bytes(proto.getvalue())
    return folder / "vocabulary.spm"


AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.unit
@pytest.mark.parametrize("published", [False, True])
def test_byte_pairs_give_the_ids_texts_and_characters_of_sentencepiece(vocabulary, tmp_path, published):
    """Here and in transformers; published Mistrals have a vocabulary with a space before a text."""
    if published:
        options = {"vocab_size": 400, "byte_fallback": True, "add_dummy_prefix": True, "num_threads": 1}
        vocabulary = sentencepiece_of(tmp_path, model_type="bpe", **AS_IT_IS, **options)
    theirs, ours = SentencePieceProcessor(model_file=str(vocabulary)), open_vocabulary(vocabulary)
    spelled, plain = ["no <eos> or <bos>, <unk>"], texts_to_read()
    assert ours.encode(plain + spelled) == theirs.encode(plain + spelled)
    found = theirs.encode(plain, return_type="offset_mapping", return_bytes=False)
    exported = ours.for_transformers()
    for text, ids, places, one in zip(plain, theirs.encode(plain), ours.places(plain), found, strict=True):
        for span in ([(0, len(text))], [(len(text) // 2, len(text))], [(0, len(text) // 3)]):
            assert (completion_mask(text, places, span) == completion_mask(text, one["offsets"], span)).all(), text
        assert exported.encode(text).ids == [ours.special["bos"], *ids]
        assert ours.decode(ids) == exported.decode(ids) == theirs.decode(ids)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "said"),
    [({"model_type": "bpe", "vocab_size": 60}, "normalizes"), (AS_IT_IS | {"vocab_size": 40}, ".* UNIGRAM")],
)
def test_other_vocabularies_are_refused(tmp_path, options, said):
    """llama.cpp's converter takes one of Unigram for byte-pair encoding, and reads nearly every text otherwise."""
    with pytest.raises(UserError, match=f"^the base model's SentencePiece vocabulary {said}"):
        open_vocabulary(sentencepiece_of(tmp_path, **options))


@pytest.mark.parametrize("name", [*FAMILIES, *OF_BYTES])
def test_a_folder_of_transformers_is_a_base_model(jax_backend, tmp_path, name):
    from tpulm.models.from_transformers import load_transformers
    from tpulm.models.preset_folders import load_preset, save_preset

    vocabulary, preset = preset_of(name, tmp_path)
    tell_norms_and_biases_apart(preset)
    model = export(preset, tmp_path / "folder")
    save_preset(load_transformers(tmp_path / "folder", "base.small.preset"), tmp_path / "converted")
    trained, converted = open_vocabulary(vocabulary), load_preset(tmp_path / "converted")
    check_same(converted, model)
    assert fingerprints(tmp_path / "converted/assets") == fingerprints(preset / "assets")
    theirs, ours = map(open_vocabulary, (preset, tmp_path / "converted"))
    assert ours.special == theirs.special == trained.special
    assert ours.encode(TEXTS) == theirs.encode(TEXTS) == trained.encode(TEXTS)
    assert list(map(int, converted.preprocessor.tokenizer("the value"))) == ours.encode(["the value"])[0]


@pytest.mark.parametrize("name", ["mistral", pytest.param("qwen3 of bytes", marks=pytest.mark.long)])
def test_greedy_generation_follows_the_logits(jax_backend, tmp_path, name):
    """Beyond the window of a model, and with keys that are kept."""
    check_greedy(preset_of(name, tmp_path)[1], 24)


def test_a_vocabulary_with_other_rules_is_refused(jax_backend, tmp_path):
    from tpulm.models.from_transformers import load_transformers

    _, preset = preset_of("qwen3 of bytes", tmp_path)
    export(preset, tmp_path / "folder")
    described = json.loads((tmp_path / "folder/tokenizer.json").read_text())
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    merges = described["model"] | {"ignore_merges": True}
    for change in ({"normalizer": None}, {"model": merges}, {"pre_tokenizer": words}):
        write_json(tmp_path / "folder/tokenizer.json", described | change)
        with pytest.raises(UserError, match=r"^base\.small\.preset is .*folder, whose tokenizer\.json .* of qwen"):
            load_transformers(tmp_path / "folder", "base.small.preset")


OPEN = """
import json, sys
import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer
jobs, found = json.loads(sys.argv[1]), {}

def run(model, job, name):
    import torch
    with torch.no_grad():
        np.save(f"{job['out']}-{name}.npy", model(torch.tensor([job["ids"]])).logits[0].float().numpy())

for job in jobs:
    model = AutoModelForCausalLM.from_pretrained(job["folder"])
    run(model, job, "base")
    tokenizer = AutoTokenizer.from_pretrained(job["folder"])
    ids = [tokenizer(text)["input_ids"] for text in job["texts"]]
    found[job["folder"]] = {
        "class": type(model).__name__,
        "ids": ids,
        "texts": [tokenizer.decode(one, skip_special_tokens=True) for one in ids],
        "special": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "ends": model.generation_config.eos_token_id,
        "new": len(model.generate(**tokenizer(job["texts"][0], return_tensors="pt"), max_new_tokens=3)[0]),
    }
    if "adapter" in job:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, job["adapter"])
        run(model, job, "tuned")
        run(model.merge_and_unload(), job, "merged")
print("RESULT" + json.dumps(found))
"""


def job_of(preset, exported, targets):
    """Return a job for OPEN, with an adapter for PEFT; Keras's logits before and after; the tokenizer."""
    from safetensors.numpy import save_file
    from tpulm.models.preset_folders import load_preset

    trained, adapter = open_vocabulary(preset), exported.with_name(f"{exported.name}-adapter")
    ids = [*opening_of(trained), *trained.encode([" ".join(prose(3))])[0]][:24]
    tuned = opened(preset, targets=targets)
    draw_lora(tuned)
    arrays = {variable.path: np.asarray(variable.value) for variable in tuned.trainable_variables}
    tensors, config = peft_adapter.peft(arrays, None)
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(adapter / "adapter_config.json", config)
    job = {"folder": str(exported), "adapter": str(adapter), "ids": ids, "texts": TEXTS, "out": f"{exported}-logits"}
    return job, logits(load_preset(preset), ids), logits(tuned, ids), trained


def check_opened(found, job, before, after, trained):
    """Check what OPEN has found: ids, and logits of a model, of its adapter, and of both merged."""
    assert found["ids"] == [[*opening_of(trained), *ids] for ids in trained.encode(TEXTS)]
    assert 0 < found["new"] - len(found["ids"][0]) <= 3
    for part, wanted in (("base", before), ("tuned", after), ("merged", after)):
        np.testing.assert_allclose(np.load(f"{job['out']}-{part}.npy"), wanted, atol=1e-4, err_msg=job["out"])
    assert np.abs(after - before).max() > 0.1


def tell_norms_and_biases_apart(preset):
    """Draw the scales and biases of a preset, which begin as ones and zeros."""
    from tpulm.models.preset_folders import load_preset, save_preset

    model, draw = load_preset(preset), np.random.default_rng(1)
    for variable in model.backbone.weights:
        if variable.path.endswith(("/scale", "/bias")):
            variable.assign(np.asarray(variable.value) + 0.3 * draw.standard_normal(variable.shape))
    save_preset(model, preset)


@pytest.fixture(scope="module")
def families(jax_backend, tmp_path_factory):
    """Every family in a folder, with an adapter: the job for OPEN, and Keras's logits before and after, by name."""
    root, found = tmp_path_factory.mktemp("families"), {}
    for name in [*FAMILIES, *OF_BYTES]:
        _, preset = preset_of(name, root)
        tell_norms_and_biases_apart(preset)
        export(preset, root / name)
        found[name] = job_of(preset, root / name, EVERYTHING)
    return found


@pytest.mark.long
@pytest.mark.parametrize("which", ["transformers 5", "transformers 4"])
def test_transformers_and_peft_give_the_logits_of_keras(openers, families, which):
    found = openers.result(which, OPEN, [job for job, *_ in families.values()])
    classes = {name: name.capitalize() for name in FAMILIES} | AS_LLAMA
    classes |= dict(zip(OF_BYTES, ("Llama", "Qwen2", "Qwen3"), strict=True))
    for name, (job, before, after, theirs) in families.items():
        opened = found[job["folder"]]
        check_opened(opened, job, before, after, theirs)
        assert opened["class"] == f"{classes[name]}ForCausalLM"
        assert opened["texts"] == TEXTS and opened["special"] == [theirs.special["bos"], 1, 0] and opened["ends"] == 1


def example(word):
    """Return the example of the guide "Use the models" with this word in it."""
    guide = (ROOT / "docs/guides/use-models.md").read_text()
    return next(block for block in re.findall(r"```python\n(.*?)```", guide, re.S) if word in block)


@pytest.mark.long
@pytest.mark.parametrize("which", LOCKS)
def test_the_examples_of_the_guide_open_what_was_trained(trained, openers, which):
    assert openers(which, example("peft"), folder=trained.folder).startswith("def ")
    found = ast.literal_eval(openers(which, example("fill-mask"), folder=trained.folder).splitlines()[-1])
    items = json.loads((trained / "results/mlm/tiny/fill_mask.json").read_text())
    [kept] = [item["answers"] for item in items if item["prompt"] == "Return the [MASK] of the list."]
    assert [answer["token"] for answer in found] == [answer["token"] for answer in kept]
    assert [answer["score"] for answer in found] == pytest.approx([answer["score"] for answer in kept], abs=1e-4)


def test_the_workflow_makes_a_folder_of_its_base_model(trained):
    """The weights are those of the checkpoint, the tokenizer is the vocabulary that was trained."""
    folder, training = trained / "results/transformers/base/small", trained / "results/base/small"
    config = json.loads((folder / "config.json").read_text())
    best = load_file(training / "checkpoints/00000020/best.safetensors")
    assert config["architectures"] == ["GemmaForCausalLM"] and config["vocab_size"] == 400
    weights = load_file(folder / "model.safetensors")
    assert (weights["model.embed_tokens.weight"] == best["token_embedding/embeddings"]).all()
    key = best["decoder_block_0/attention/key/kernel"]  # [heads, hidden, width]
    assert (weights["model.layers.0.self_attn.k_proj.weight"].reshape(*key.shape[::2], -1) == key.swapaxes(1, 2)).all()
    assert len(weights) == len(best)
    assert (folder / "tokenizer.model").read_bytes() == (training / "vocabulary.spm").read_bytes()
