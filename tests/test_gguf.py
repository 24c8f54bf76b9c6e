"""Causal models as GGUF files: their weights and vocabularies as llama.cpp reads them."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import test_causal
import test_lora
import test_transformers
from conftest import open_vocabulary
from safetensors.numpy import save_file
from test_transformers import SIZES, texts_to_read
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.models.gguf_files import write_gguf
from tpulm.specs.artifacts import GGUF_TYPES
from tpulm.specs.causal_families import FAMILIES
from tpulm.tokenization.sentencepiece_bpe import USER_DEFINED

jax_backend, vocabulary, families = test_causal.jax_backend, test_lora.vocabulary, test_transformers.families
CONFIG = {
    "model_type": "gemma", "vocab_size": 330, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
LLAMA = CONFIG | {"model_type": "llama"}
TENSORS = {  # their names in GGUF, and shapes
    "model.embed_tokens.weight": ("token_embd.weight", (330, 64)),
    "model.layers.0.input_layernorm.weight": ("blk.0.attn_norm.weight", (64,)),
    "model.layers.0.self_attn.q_proj.weight": ("blk.0.attn_q.weight", (32, 64)),
    "model.layers.0.self_attn.k_proj.weight": ("blk.0.attn_k.weight", (16, 64)),
    "model.layers.0.self_attn.q_proj.bias": ("blk.0.attn_q.bias", (32,)),
    "model.layers.0.mlp.down_proj.weight": ("blk.0.ffn_down.weight", (64, 80)),
}


@pytest.fixture
def write(vocabulary, tmp_path):
    """Return a function that writes a model of a config; it returns the arrays and the opened file."""

    def written(config, kind="f16", template=None, ends=1, dtype="float32", scale=1.0):
        folder, draw = tmp_path / "small", np.random.default_rng(0)
        folder.mkdir(exist_ok=True)
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", {"eos_token_id": ends})
        arrays = {name: (scale * draw.standard_normal(shape)).astype(dtype) for name, (_, shape) in TENSORS.items()}
        save_file(arrays, folder / "model.safetensors")
        shutil.copy(vocabulary, folder / "tokenizer.model")
        if template:
            (folder / "chat_template.jinja").write_text(template)
        write_gguf(folder, tmp_path / "small.gguf", kind)
        return arrays, gguf.GGUFReader(tmp_path / "small.gguf")

    return written


def values(reader):
    """Return what the tensors of a file stand for by name, float32."""
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


def field(reader, key):
    return reader.get_field(key).contents()


@pytest.mark.unit
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_of_the_folder(write, dtype):
    arrays, reader = write(CONFIG, dtype=dtype)
    found = values(reader)
    assert sorted(found) == sorted(own for own, _ in TENSORS.values())
    for name, (own, _) in TENSORS.items():
        wanted = arrays[name].astype(np.float32) + ("norm" in own)  # Gemma multiplies by 1 + weight
        np.testing.assert_allclose(found[own], wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.unit
def test_heads_of_a_llama_are_rotated_by_pairs(write):
    arrays, reader = write(LLAMA, "q8_0", dtype="float16")
    found = values(reader)
    for own, heads, name in (("q", 4, "q_proj"), ("k", 2, "k_proj")):
        array = arrays[f"model.layers.0.self_attn.{name}.weight"]
        halves = array.reshape(heads, 2, 4, 64)
        pairs = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(array.shape)
        step = np.abs(pairs).max() / 127
        np.testing.assert_allclose(found[f"blk.0.attn_{own}.weight"], pairs, atol=step)
    bias = arrays["model.layers.0.self_attn.q_proj.bias"].reshape(4, 2, 4)
    assert (found["blk.0.attn_q.bias"].reshape(4, 4, 2) == np.stack([bias[:, 0], bias[:, 1]], axis=2)).all()
    assert (found["blk.0.attn_norm.weight"] == arrays["model.layers.0.input_layernorm.weight"]).all()
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["token_embd.weight"] == "Q8_0" and kinds["blk.0.attn_norm.weight"] == "F32"
    assert kinds["blk.0.ffn_down.weight"] == "F16"  # rows of 80 are no whole blocks


@pytest.mark.unit
def test_the_vocabulary_has_pieces_special_tokens_and_the_template(write, vocabulary):
    _, reader = write(CONFIG, template="{{ messages }}", ends=[1, 7])
    pieces = field(reader, "tokenizer.ggml.tokens")
    theirs = open_vocabulary(vocabulary)
    wanted = [piece.replace("▁", " ") if piece in USER_DEFINED else piece for piece in map(theirs.piece, range(328))]
    assert pieces[:328] == wanted and len(pieces) == 330 and {*map(theirs.piece, range(328))} > {*USER_DEFINED}
    special = {"bos": 2, "eos": 1, "padding": 0, "unknown": 3, "eot": 7}
    assert {name: field(reader, f"tokenizer.ggml.{name}_token_id") for name in special} == special
    assert field(reader, "tokenizer.chat_template") == "{{ messages }}"
    assert field(reader, "tokenizer.ggml.add_bos_token") and not field(reader, "tokenizer.ggml.add_space_prefix")


@pytest.mark.unit
def test_the_context_of_a_mistral_ends_with_its_window(write):
    _, reader = write(LLAMA | {"model_type": "mistral", "sliding_window": 512})
    assert field(reader, "llama.context_length") == 512 and field(reader, "llama.rope.freq_base") == 1e4


GEMMA2 = CONFIG | {"model_type": "gemma2", "query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0}
GEMMA2 |= {"final_logit_softcapping": 30.0, "sliding_window": 512, "layer_types": ["sliding_attention"]}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIG | {"model_type": "gpt2"}, "is of the type gpt2; allowed: gemma, "),
        (GEMMA2 | {"query_pre_attn_scalar": 16}, "has query_pre_attn_scalar 16, .* a gemma2 cannot hold; allowed: 8"),
        (GEMMA2 | {"final_logit_softcapping": None}, "has final_logit_softcapping None, .* allowed: a number"),
        (GEMMA2 | {"model_type": "gemma3_text"}, "has attn_logit_softcapping 50.0, .* allowed: None"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3"}}, "has rope_scaling llama3, .* allowed: linear"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(write, tmp_path, config, said):
    with pytest.raises(UserError, match=said):
        write(config)
    assert not (tmp_path / "small.gguf").exists()
    _, reader = write(GEMMA2)
    assert field(reader, "gemma2.attn_logit_softcapping") == 50 and field(reader, "gemma2.attention.sliding_window")


@pytest.mark.unit
def test_a_weight_that_float16_lacks_is_named(write, tmp_path):
    with pytest.raises(UserError, match=r"small: model\.\S+ has a weight of \S+, above float16's 65504"):
        write(CONFIG, scale=1e6)
    assert not (tmp_path / "small.gguf").exists()


@pytest.mark.unit
def test_a_byte_level_vocabulary_of_other_words_is_refused(tmp_path):
    write_json(tmp_path / "config.json", CONFIG)
    write_json(tmp_path / "tokenizer.json", {"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": None, "model": {}})
    with pytest.raises(UserError, match=r"has no tokenizer\.model, .* allowed: .* Llama 3"):
        write_gguf(tmp_path, tmp_path / "small.gguf", "f16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "tokenizer.json"]


OPEN = """
import json, sys
import numpy as np
from llama_cpp import Llama
found = {}
jobs, texts = json.load(open(sys.argv[1]))
for name, job in jobs.items():
    model = Llama(job["file"], n_ctx=64, logits_all=True, verbose=False, n_threads=1)
    cut = [model.tokenize(text.encode(), add_bos=True, special=False) for text in texts]
    model.eval(job["ids"])
    np.save(job["file"] + ".npy", model.scores[: len(job["ids"])])
    greedy = model.generate(job["ids"][:2], temp=0.0, repeat_penalty=1.0)
    found[name] = cut, [next(greedy) for _ in range(3)]  # within the window of the Mistral
print("RESULT" + json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("c++") is None, reason="llama-cpp-python is compiled where it is installed")
def test_llama_cpp_reads_the_same_ids_and_gives_the_logits_of_keras(openers, families, tmp_path):
    from tpulm.models.preset_folders import load_preset

    texts, jobs = [text for text in texts_to_read() if "▁" not in text], {}
    for name, (job, *_) in families.items():
        for kind in GGUF_TYPES:
            write_json(f"{job['folder']}/generation_config.json", {"eos_token_id": 1})
            write_gguf(Path(job["folder"]), tmp_path / f"{name}-{kind}.gguf", kind)
            jobs[f"{name}-{kind}"] = {"file": str(tmp_path / f"{name}-{kind}.gguf"), "ids": job["ids"]}
    write_json(tmp_path / "jobs.json", [jobs, texts])
    found = json.loads(openers("llama.cpp", OPEN, str(tmp_path / "jobs.json")).rpartition("RESULT")[2])
    for name, (job, before, _, ours) in families.items():
        wanted = [[*test_transformers.opening_of(ours), *ids] for ids in ours.encode(texts)]
        length = 5 if name == "mistral" else len(before)  # its window
        for kind, most in (("f16", 0.01), ("q8_0", 0.1)):
            assert found[f"{name}-{kind}"][0] == wanted
            logits = np.load(tmp_path / f"{name}-{kind}.gguf.npy")
            assert np.abs(logits - before)[:length].max() < most * np.abs(before).max(), (name, kind)
        model, ids = load_preset(f"{job['folder']}-preset"), job["ids"][:2]
        for token in found[f"{name}-f16"][1]:
            ids.append(int(test_transformers.logits(model, ids)[-1].argmax()))
            assert ids[-1] == token, name
    assert set(families) == {*FAMILIES, *test_transformers.OF_BYTES} and SIZES["mistral"]["sliding_window"] == 5
