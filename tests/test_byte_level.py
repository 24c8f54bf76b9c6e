"""Byte-level BPE of causal models: trained here, and as keras-hub opens it."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import pyarrow.parquet as pq
import pytest
import test_causal
from conftest import ROOT, Workflow, open_vocabulary
from test_causal import prose
from test_transformers import OF_BYTES, preset_of
from test_try import PROGRAM
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, sha256, write_json
from tpulm.specs.byte_level import PUBLISHED, rules_of
from tpulm.specs.causal_vocabularies import VOCABULARY_KINDS, vocabulary_in
from tpulm.tokenization.training import train_byte_level

jax_backend = test_causal.jax_backend
SIZE = "base.small.vocab_size"
TEXTS = [
    "12345 and 1234567, 2026", "    return x\n\n\n\treturn  y", "don't IT'S", "a\r\nb\x00c",
    "漢字 العربية 👩\u200d👩\u200d👧",
    "e\u0301", "\ue000\u2028 ", " ", "",
]  # fmt: skip
SPELLED = "no <|end_of_text|> here, <|im_end|>, <|endoftext|>, <|fim_pad|> and <|finetune_right_pad_id|>"


def documents():
    """Return documents with numbers and indented code."""
    draw = random.Random(0)
    return [*prose(200), *(f"def f({n}):\n    return {draw.randrange(10**n)}\n" for n in range(1, 200))]


def trained(name, folder, size=330):
    path = folder / f"{name}.json"
    train_byte_level([documents()], VOCABULARY_KINDS[name].byte_level, size, SIZE).save(str(path))
    return open_vocabulary(path)


@pytest.mark.unit
@pytest.mark.parametrize(("name", "digits"), [("llama3", ["123", "4"]), ("qwen2", [*"1234"]), ("qwen3", [*"1234"])])
def test_words_are_those_that_are_published_and_a_text_comes_back(tmp_path, name, digits):
    """So many digits; all spaces but the one before a letter."""
    tokenizer = trained(name, tmp_path)
    words = tokenizer.fast.pre_tokenizer.pre_tokenize_str("1234    return")
    assert [word for word, _ in words] == [*digits, "ĠĠĠ", "Ġreturn"]
    for text, ids, places in zip(TEXTS, tokenizer.encode(TEXTS), tokenizer.places(TEXTS), strict=True):
        composed = unicodedata.normalize("NFC", text) if name != "llama3" else text
        assert tokenizer.decode(ids) == composed and len(ids) == len(places)
    special = {"bos": 2 if name == "llama3" else None, "eos": 1, "pad": 0}
    assert tokenizer.special == special and tokenizer.size == 330


BYTES = """
import sys
from pathlib import Path
from test_byte_level import made
from tpulm.training import runtime
runtime.start(1)
print("RESULT", made(Path(sys.argv[1])))
"""


def made(folder):
    """Return a vocabulary and what is in the files of a preset, written into a new folder."""
    folder.mkdir()
    vocabulary = trained("llama3", folder).fast.to_str()
    return f"{vocabulary} {fingerprints(preset_of('llama3 of bytes', folder)[1])}"


def test_the_same_text_gives_the_same_bytes(jax_backend, tmp_path):
    """A vocabulary, and the preset with it, in another process: whatever the threads, and the order of sets."""
    environment = {"PYTHONPATH": f"{ROOT}/scripts:{ROOT}/tests", "PYTHONHASHSEED": "3", "RAYON_NUM_THREADS": "3"}
    command = [sys.executable, "-c", BYTES, tmp_path / "other"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    found = done.stdout.partition("RESULT ")[2].rstrip("\n")
    assert len(found) > 5000 and found == made(tmp_path / "here")


@pytest.mark.unit
def test_a_size_that_cannot_be_names_the_key():
    vocabulary = VOCABULARY_KINDS["llama3"].byte_level
    with pytest.raises(UserError, match=f"^{SIZE} is 261; allowed: 262 or more"):
        train_byte_level([documents()], vocabulary, 261, SIZE)
    with pytest.raises(UserError, match=rf"^{SIZE} is 90000; the text has pieces for at most \d+"):
        train_byte_level([documents()], vocabulary, 90_000, SIZE)
    texts, vocabulary = documents(), VOCABULARY_KINDS["llama3"].byte_level
    found = {train_byte_level([texts[:n], texts[n:]], vocabulary, 330, SIZE).to_str() for n in (1, 7, 100, 150)}
    assert len(found) == 1


@pytest.mark.parametrize("name", OF_BYTES)
def test_a_preset_has_the_ids_of_its_vocabulary(jax_backend, tmp_path, name):
    """Opened by keras-hub, which merges across words; and what its model generates from is cut so, too."""
    from tpulm.models.preset_folders import load_preset

    vocabulary, preset = preset_of(name, tmp_path)
    ours, theirs = map(open_vocabulary, (vocabulary, preset))
    texts = [*TEXTS, SPELLED, *documents()]
    assert list(map(ours.decode, ours.encode(texts))) == list(map(theirs.decode, ours.encode(texts)))
    assert ours.encode(texts) == theirs.encode(texts) and ours.places(texts) == theirs.places(texts)
    assert (ours.special, ours.size) == (theirs.special, theirs.size)
    cut = load_preset(preset).preprocessor.tokenizer
    assert [list(map(int, cut(text))) for text in texts] == ours.encode(texts)


SIZES = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 16, "intermediate_dim": 32}
CONFIG = {
    "corpus": {"source": "python-docs", "max_documents": 400},
    "base": {
        "tiny": {
            "tokenizer": "byte-level-bpe", "model": {"architecture": "llama3"} | SIZES, "vocab_size": 400,
            "sequence_length": 16, "steps": 4, "checkpoint_every": 2, "batch_size": 4, "learning_rate": 1e-3,
        }
    },
}  # fmt: skip


@pytest.mark.long
def test_the_workflow_makes_a_model_of_bytes(jax_backend, tmp_path):
    """From the corpus to files for transformers and llama.cpp; the model answers, and a checkpoint opens."""
    from tpulm.demo.checkpoints import open_causal

    workflow = Workflow(tmp_path / "workflow")
    (workflow / "bytes.yaml").write_text(json.dumps(CONFIG))
    workflow("base", "gguf", "--configfile", "bytes.yaml")
    results = workflow / "results"
    vocabulary = results / "base/tiny/vocabulary.json"
    manifest = json.loads((results / "tokens/tiny/corpus/concat-16/manifest.json").read_text())
    assert manifest["tokenizer_sha256"] == sha256(vocabulary.with_name("tokenizer.json"))
    assert manifest["special_ids"]["bos"] == 2
    exported = Tokenizer.from_file(str(results / "transformers/base/tiny/tokenizer.json"))
    texts = pq.read_table(results / "corpus/test.parquet")["text"].to_pylist()
    assert [exported.encode(text).ids[1:] for text in texts] == open_vocabulary(vocabulary).encode(texts)
    assert len(list((results / "gguf/base").iterdir())) == 2
    command = [sys.executable, PROGRAM, "tiny", "--configfile", "bytes.yaml", "--prompt", "def f"]
    assert subprocess.run(command, cwd=workflow.folder, stdout=subprocess.PIPE, check=True).stdout
    assert vocabulary_in(vocabulary.parent) == vocabulary
    tokenizer = open_causal(results / "base/tiny/checkpoints/00000002", vocabulary).preprocessor.tokenizer
    assert [list(map(int, tokenizer(text))) for text in TEXTS] == open_vocabulary(vocabulary).encode(TEXTS)


@pytest.mark.parametrize("family", ["GPT2", "Bloom"])
def test_other_families_have_the_ids_of_transformers(jax_backend, tmp_path, family):
    """Also of a token that a text spells. A family whose words are not known here is refused."""
    import keras_hub

    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    added = ["<|endoftext|>", "<s>", "</s>", "<pad>", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, special_tokens=added, show_progress=False)
    theirs.train_from_iterator(documents(), trainer)
    described = json.loads(theirs.to_str())
    merges = [" ".join(pair) for pair in described["model"]["merges"]]
    kind = getattr(keras_hub.models, f"{family}Tokenizer")
    kind(described["model"]["vocab"], merges, unsplittable_tokens=added).save_to_preset(str(tmp_path))
    write_json(tmp_path / "config.json", {"registered_name": f"keras_hub>{family}Backbone", "config": {}})
    if family == "Bloom":
        with pytest.raises(UserError, match=r"^the base model's BloomTokenizer has no counterpart .*GPT2Tokenizer"):
            open_vocabulary(tmp_path)
        return
    assert rules_of(described) is PUBLISHED[f"{family}Tokenizer"]
    texts = [*TEXTS, "<think>\n12345</think> is it", *documents()]
    assert open_vocabulary(tmp_path).encode(texts) == [theirs.encode(text).ids for text in texts]
