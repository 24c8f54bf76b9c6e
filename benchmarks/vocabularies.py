"""Vocabularies: training and encoding beside other libraries; writes benchmarks/results/vocabularies.md.

    python benchmarks/vocabularies.py                     # docstrings of this machine's Python packages
    python benchmarks/vocabularies.py --megabytes 36 400  # of several sizes
    python benchmarks/vocabularies.py --megabytes 2000 --without sentencepiece --result FILE
    python benchmarks/vocabularies.py --text FILE         # a document per line
    PYTHONPATH=FOLDER python benchmarks/vocabularies.py   # with rustbpe and gigatoken, if they are in FOLDER

Each measurement is a process of its own. Training may use all CPUs; encoding uses one thread.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import docstrings
import numpy as np
from data import BENCHMARKS, ROOT, machine, write

sys.path.insert(0, str(ROOT / "scripts"))

RESULT = BENCHMARKS / "results" / "vocabularies.md"
ENCODED = 100  # MB of a text; the time to encode longer ones is in proportion
HELD_OUT = 20  # one line of so many is not trained on
ONE_THREAD = {"RAYON_NUM_THREADS": "1"}
MODELS = ("unigram", "bpe", "wordpiece", "byte-level-bpe")
# What trains and encodes each of these beside this workflow.
TRAINERS = {
    "unigram": ("tokenizers", "sentencepiece"),
    "bpe": ("tokenizers", "sentencepiece"),
    "wordpiece": ("tokenizers",),
    "byte-level-bpe": ("tokenizers", "rustbpe"),
}


def lines(path: str) -> Iterator[str]:
    """Yield the documents of a text."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            if document := line.rstrip("\n"):
                yield document


def batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents, a thousand at a time."""
    left = iter(documents)
    while batch := list(islice(left, 1000)):
        yield batch


def train_here(model: str, size: int, documents: Iterator[str]) -> Callable[[list[str]], int]:
    """Train as the workflow does; return what counts the tokens of documents."""
    from tpulm.tokenization.pipeline import Recipe
    from tpulm.tokenization.training import train

    tokenizer, _ = train(batches(documents), Recipe(model, size))
    tokenizer.save(os.environ["SAVED"])
    return lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def train_tokenizers(model: str, size: int, documents: Iterator[str]) -> Callable[[list[str]], int]:
    """Train with the trainer of `tokenizers`, for the same pipeline."""
    from tokenizers import models, pre_tokenizers, trainers
    from tpulm.tokenization.pipeline import SPECIALS, Recipe, tokenizer_around

    shared = {"vocab_size": size, "special_tokens": SPECIALS, "show_progress": False}
    own, trainer = {
        "unigram": lambda: (models.Unigram(), trainers.UnigramTrainer(unk_token="<unk>", **shared)),
        "bpe": lambda: (models.BPE(unk_token="<unk>", fuse_unk=True), trainers.BpeTrainer(**shared)),
        "wordpiece": lambda: (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(**shared)),
        "byte-level-bpe": lambda: (
            models.BPE(),
            trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **shared),
        ),
    }[model]()
    tokenizer = tokenizer_around(own, Recipe(model, size))
    tokenizer.train_from_iterator(documents, trainer)
    return lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def train_sentencepiece(model: str, size: int, documents: Iterator[str]) -> Callable[[list[str]], int]:
    """Train SentencePiece with its defaults, but without its own normalization."""
    import sentencepiece

    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=documents, model_writer=proto, model_type=model, vocab_size=size, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=os.cpu_count(),
        max_sentence_length=1 << 20,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    return lambda texts: sum(map(len, processor.encode(texts)))


def train_rustbpe(model: str, size: int, documents: Iterator[str]) -> Callable[[list[str]], int]:
    """Train rustbpe with the words of GPT-2."""
    import rustbpe

    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(documents, vocab_size=size, pattern=pattern)
    return lambda texts: sum(map(len, tokenizer.batch_encode(texts)))


WAYS = {
    "here": train_here,
    "tokenizers": train_tokenizers,
    "sentencepiece": train_sentencepiece,
    "rustbpe": train_rustbpe,
}


def trained(way: str, model: str, size: int, path: str) -> dict:
    """Train and return seconds, peak memory of the process in MB and characters per token of the held-out documents."""
    held_out = list(islice(lines(path), 0, None, HELD_OUT))
    start = time.perf_counter()
    count = WAYS[way](model, size, (line for number, line in enumerate(lines(path)) if number % HELD_OUT))
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"seconds": seconds, "memory": memory, "quality": sum(map(len, held_out)) / count(held_out)}


def encoded(way: str, saved: str, path: str) -> dict:
    """Encode with one thread; return the seconds, and the SHA-256 of the ids but those of [CLS] and [SEP]."""
    import pyarrow as pa
    from tpulm.tokenization.encoding import tokenize
    from tpulm.tokenization.folder import load

    texts = list(batches(lines(path)))
    tokenizer = load(saved)
    if way == "gigatoken":
        import gigatoken

        fast = gigatoken.Tokenizer(tokenizer)
    start = time.perf_counter()
    if way == "here":
        found = [ids for ids, _ in tokenize(tokenizer, map(pa.array, texts))]
    elif way == "tokenizers":
        found = [one.ids for batch in texts for one in tokenizer.encode_batch_fast(batch)]
    else:
        found = [ids for batch in texts for ids in fast.encode_batch_list(batch)]
    seconds = time.perf_counter() - start
    ids = np.concatenate([np.asarray(one, np.int32) for one in found])
    return {"seconds": seconds, "ids": hashlib.sha256(ids[ids > 1].tobytes()).hexdigest()}


def measured(what: str, way: str, *arguments: object, **environment: str) -> dict:
    """Return what a process of its own measures; `failed` where it ends with an error."""
    command = [sys.executable, __file__, "--measure", json.dumps([what, way, *map(str, arguments)])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    print(what, way, *arguments, done.stdout.strip() or done.stderr.strip()[-300:], file=sys.stderr)
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": True}


def cell(found: dict, ours: dict) -> str:
    """Return a cell: the time and its ratio to ours, memory and quality; where ids are others, that they are."""
    if "failed" in found or "failed" in ours:
        return "failed"
    if found.get("ids") != ours.get("ids"):
        return "other ids"
    ratio = "" if found is ours else f" ({found['seconds'] / ours['seconds']:.2f})"
    rest = f", {found['memory']:,.0f} MB, {found['quality']:.3f}" if "memory" in found else ""
    return f"{found['seconds']:.1f} s{ratio}{rest}"


def tables(text: str, name: str, size: int, models: list[str], without: list[str]) -> list[str]:
    """Measure with a text, a document per line; return the tables, of long texts only that of training."""
    training, encoding = [], []
    megabytes = os.path.getsize(text) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            saved = f"{scratch}/{model}.json"
            ours = measured("train", "here", model, size, text, SAVED=saved)
            row = [model, cell(ours, ours)]
            for way in ("tokenizers", "sentencepiece", "rustbpe"):
                there = way in TRAINERS[model] and way not in without and importlib.util.find_spec(way)
                row.append(cell(measured("train", way, model, size, text), ours) if there else "")
            training.append(f"| {' | '.join(row)} |")
            if megabytes > ENCODED:
                continue
            ours = measured("encode", "here", saved, text, **ONE_THREAD)
            row = [model, cell(ours, ours)]
            for way in ("tokenizers", "gigatoken"):
                there = importlib.util.find_spec(way) and (way != "gigatoken" or model == "byte-level-bpe")
                row.append(cell(measured("encode", way, saved, text, **ONE_THREAD), ours) if there else "")
            encoding.append(f"| {' | '.join(row)} |")
    return [
        "",
        f"Training on {megabytes:.0f} MB ({name}): time, peak memory of the process, "
        "characters per token of held-out documents. SentencePiece and byte-level BPE also split words at punctuation.",
        "",
        "| model | this workflow | `tokenizers` | SentencePiece | rustbpe |",
        "| --- | --- | --- | --- | --- |",
        *training,
        *encoded_table(encoding),
    ]


def encoded_table(rows: list[str]) -> list[str]:
    """Return the table of encoding, if there is one."""
    head = [
        "",
        "Encoding of the same text with one thread. The token ids are the same (compared by their SHA-256). gigatoken "
        "supports only byte-level BPE.",
        "",
        "| model | this workflow | `tokenizers` | gigatoken |",
        "| --- | --- | --- | --- |",
    ]
    return [*head, *rows] if rows else []


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="file with a document per line; docstrings without it")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[36])
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=MODELS)
    parser.add_argument("--without", choices=list(WAYS)[1:], nargs="+", default=[], help="trainers to leave out")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the tables go")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        what, way, *rest = json.loads(asked.measure)
        print(json.dumps(trained(way, rest[0], int(rest[1]), rest[2]) if what == "train" else encoded(way, *rest)))
        return
    found = [
        f"{machine()}, Python {platform.python_version()}. {asked.vocab_size:,} pieces. Brackets: the time divided "
        "by that of this workflow."
    ]
    if asked.text:
        found += tables(asked.text, Path(asked.text).name, asked.vocab_size, asked.models, asked.without)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            text = Path(scratch, "text")
            for megabytes in asked.megabytes:
                name = f"docstrings, SHA-256 {docstrings.write(text, megabytes)}"
                found += tables(str(text), name, asked.vocab_size, asked.models, asked.without)
    write(found, asked.result, " ".join(["python", *sys.orig_argv[1:]]))
    print(asked.result.read_text())


if __name__ == "__main__":
    main()
