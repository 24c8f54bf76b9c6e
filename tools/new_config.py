"""Write a short config for a text, which trains a masked and a causal language model on it.

    python tools/new_config.py PATH... > my.yaml                       small models, minutes on two CPU cores
    python tools/new_config.py PATH... --accelerator v5e-8 > my.yaml   models and batches for this accelerator

PATH is a file, a folder or a glob. Standard error has what was found and an estimate of the time.
"""

import argparse
import glob
import json
import math
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

# Runs have one thread, so the speed of one thread is measured. numpy reads this when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    import numpy as np
    from ruamel.yaml import YAML
    from sentencepiece import SentencePieceProcessor
    from tpulm.config.model_sizes import model_size
    from tpulm.config.outline import Outline
    from tpulm.config.reading import complete
    from tpulm.core.accelerators import GIB, GPU_PATTERN, parse_gpu, slice_hosts, topology
    from tpulm.core.bucket import remote
    from tpulm.core.errors import UserError
    from tpulm.core.scores import FEWEST
    from tpulm.corpus.files import read_files
    from tpulm.corpus.rows import Form
    from tpulm.corpus.sources import ALLOWED, expand, kind_of, packed, parts_of, size_of
    from tpulm.specs.record_arrays import predictions_per_record
    from tpulm.specs.training_step import MOST_HOST_DEVICES
    from tpulm.tokenization.causal import train_vocabulary
    from tpulm.tokenization.pipeline import Recipe
    from tpulm.tokenization.training import COVERAGE, train
    from tpulm.tokenization.words import most_of
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

SAMPLE = 64 << 20  # bytes of text that are read
OF_A_FILE = 4 << 20  # of each file at least, because files are read in blocks of this size
TRIAL = 1_000_000  # characters that a trial vocabulary is trained on
LEAST = 20_000  # characters that a text has at least
HELD_OUT = 2 * FEWEST  # documents of a split that are held out at least, so that scores have intervals
LARGEST = 0.2  # share of a split that is held out, at most
ENOUGH = 200_000_000  # characters; the steps on CPUs read a fraction of it
LINES = 40  # of the config
SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}
SENTENCE = re.compile(r"(?:^|(?<=[.!?] )|(?<=[。！？]))[^\W\d_][\w ,;'’、「」-]{12,44}[.!?。！？]")

TEXT = Template("""\
# For $found. Every key: schemas/config.schema.yaml
title: $title
experiment: $experiment   # results and logs are below experiments/NAME/

corpus:
  source: files
  files: $files
  sample_by: $unit
  column: $column
  held_out: {validation: $share, test: $share}   # shares of the documents, for the splits that have no files
  max_documents: $limit

tokenizer: {model: unigram, vocab_size: $size$runs}   # $why
tfrecords: {sequence_length: $length, shards: {train: $shards}}
""")
CPUS = Template("""
mlm:
  runs:
    modernbert-mini:
      backend: jax
      model: {architecture: modernbert, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2,
              intermediate_size: 256, embedding_dropout: $dropout, mlp_dropout: $dropout,
              initializer_range: 0.08}   # about 1 / sqrt(hidden_size): small models learn faster
$masked

base:
  gemma-mini:
    model: {num_layers: 2, num_query_heads: 8, num_key_value_heads: 8, hidden_dim: 128, intermediate_dim: 1024,
            head_dim: 16}
    vocab_size: $size
    sequence_length: 128
$causal

prompts: {fill_mask: $masks,
          generate: $beginnings}
generation: {sampler: top_k, k: 8, temperature: 0.8, samples: 2}
evaluation: {text: {documents: 100, masked_documents: 24}}   # few, to take minutes
""")
SLICE = Template("""
mlm:
  runs:
    roberta-base:   # sizes that are not set are those of RoBERTa-base
      backend: jax
      model: {architecture: roberta, max_position_embeddings: 516, attention_probs_dropout_prob: 0}
      <<: &slice {precision: mixed_bfloat16, microbatches: $parts, host_device_count: $devices, keep_checkpoints: last,
                  resources: {accelerator: "$accelerator", hosts: $hosts}}
$masked

base:
  gemma-small:   # about as large as GPT-2
    model: {num_layers: 12, num_query_heads: 12, num_key_value_heads: 12, hidden_dim: 768, intermediate_dim: 4096,
            head_dim: 64}
    vocab_size: $size
    sequence_length: 1024
    <<: *slice
$causal

prompts: {fill_mask: $masks,
          generate: $beginnings}
plan: $plan
""")


class Rows(Form):
    """Rows as they are, with every column of a file."""

    def check(self, place: object, found: Sequence[object]) -> None:
        """Have every column read."""
        self.columns = dict.fromkeys(map(str, found), "column")

    def document_of(self, place: object, row: object) -> object:
        """Return a value of JSON."""
        return row

    def documents(self, place: object, columns: Sequence[Sequence[object]]) -> list:
        """Return each row of a table as a mapping."""
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]


ROWS = Rows("corpus", {"column": "text"})


@dataclass(frozen=True)
class Text:
    """A text: keys of the config that name it, a sample of its documents, and what was found.

    documents, characters  of all of it, about; training  share of it in files for training
    words  whether spaces divide it into words
    found  in words; runs  whether many spaces follow a space, as in code and tables
    """

    source: Mapping
    sample: Sequence[str]
    documents: int
    characters: int
    training: float
    words: bool
    found: str
    runs: bool


def look(paths: Sequence[str]) -> Text:
    """Return what a config needs to know about the text of files, folders and globs. Raises UserError."""
    globs = list(dict.fromkeys(pattern for path in paths for pattern in patterns(path)))
    files = sorted({file for pattern in globs for file in expand("corpus", pattern)})
    plain, tables = ([file for file in files if (kind_of(file) == "text") == own] for own in (True, False))
    source = {"files": by_split(files) or fewer(globs, files)}
    source |= {"sample_by": unit_of(plain)} if plain else {}
    source |= {"column": column_of(tables)} if tables else {}
    sample, share = read_sample(files, source.get("sample_by", "line"), source.get("column", "text"))
    text = "\n".join(sample)
    if len(text) < LEAST or len(sample) < FEWEST:
        raise UserError(
            f"{', '.join(paths[:3])}: {len(text):,} characters in {len(sample):,} documents is too little text; "
            f"allowed: {LEAST:,} characters or more, in {FEWEST} documents or more."
        )
    spaces = np.frombuffer(text.encode(), np.uint8) == ord(" ")
    repeated = (spaces[1:] & spaces[:-1]).sum() / max(1, spaces.sum())
    documents, lengths = int(len(sample) / share), list(map(len, sample))
    splits, whole = source["files"], sum(map(size_of, files))
    train = (
        {file for pattern in splits["train"] for file in expand("corpus", pattern)}
        if isinstance(splits, dict)
        else files
    )
    size = whole / 1e6
    found = f"{len(files):,} file{'s'[: len(files) != 1]}, {size:,.{2 if size < 1 else 1}f} MB, about {documents:,} "
    found += f"documents with a median of {statistics.median(lengths):,.0f} characters"
    runs = bool(repeated > 0.1)
    found += f"; {repeated:.0%} of the spaces follow a space" if runs else ""
    words = bool(spaces.sum() > 0.05 * len(text))
    training = sum(map(size_of, train)) / whole
    return Text(source, sample, documents, int(sum(lengths) / share), training, words, found, runs)


def patterns(path: str) -> list[str]:
    """Return the globs that an argument stands for: of a folder, one for each kind of file in it. Raises UserError."""
    if os.path.isfile(path):
        return [glob.escape(path)]
    if os.path.isdir(path):
        inside = map(Path, glob.glob(os.path.join(glob.escape(path), "**", "*"), recursive=True))
        files = [file for file in inside if file.is_file() and kind_of(str(file))]
        ends = {"".join(file.suffixes[-2:] if packed(str(file)) else file.suffixes[-1:]) for file in files}
        if not ends:
            raise UserError(f"{path} is a folder without text; allowed: one with files of {ALLOWED}.")
        return [os.path.join(glob.escape(path), "**", f"*{end}") for end in sorted(ends)]
    if not remote(path) and not glob.glob(path, recursive=True):
        raise UserError(f"{path} does not exist; allowed: a file, a folder or a glob, of {ALLOWED}.")
    return [path]


def by_split(files: Sequence[str]) -> dict[str, list[str]] | None:
    """Return globs by split where each file is named for one, such as train.txt or test-1.txt; None otherwise."""
    found: dict[str | None, list[tuple[str, str]]] = {}
    for file in files:
        word = re.split(r"[-_.]", Path(file).name)[0]
        found.setdefault(SPLITS.get(word.lower()), []).append((file, word))
    if None in found or "train" not in found:
        return None
    return {split: alike(found[split]) for split in ("train", "validation", "test") if split in found}


def alike(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return globs of the files of a split, named with their first words: few ones if these match no other files."""
    names = [file for file, _ in files]
    ends = {os.path.join(glob.escape(os.path.dirname(file)), f"{word}*{Path(file).suffix}") for file, word in files}
    same = sorted(file for end in ends for file in glob.glob(end)) == sorted(names)
    return sorted(ends) if same and len(names) > len(ends) else list(map(glob.escape, names))


def fewer(globs: list[str], files: Sequence[str]) -> list[str]:
    """Return globs of whole folders instead of the many files that a shell makes of *.txt, where both are the same."""
    ends = sorted({os.path.join(glob.escape(os.path.dirname(f)), f"*{os.path.splitext(f)[1]}") for f in files})
    same = len(globs) > 9 >= len(ends) and sorted(f for end in ends for f in glob.glob(end)) == list(files)
    return ends if same else globs


def unit_of(files: Sequence[str]) -> str:
    """Return what a document of .txt files is: a file if there are enough small ones, a paragraph, or a line."""
    sizes = list(map(size_of, files))
    # Splits take whole documents, and an evaluation the beginning of each.
    if len(files) * LARGEST >= HELD_OUT and max(sizes) <= 1 << 20 and statistics.median(sizes) <= 1 << 16:
        return "document"
    lines = [line for file in files[:8] for line in next(read_files([file], "line", ROWS), [])]
    full = sum(bool(line.strip()) for line in lines)
    divided = sum(bool(line) and not after for line, after in zip(lines, lines[1:], strict=False))
    return "paragraph" if divided >= 2 * FEWEST and full >= 1.5 * divided else "line"


def column_of(files: Sequence[str]) -> str:
    """Return `text`, or else the column with the most characters in the first row. Raises UserError."""
    for file in files:
        for row in next(filter(None, read_files([file], "line", ROWS)), [])[:1]:
            cells = row if isinstance(row, dict) else {}
            lengths = {name: len(value) for name, value in cells.items() if isinstance(value, str)}
            if "text" in cells:
                return "text"
            if not lengths:
                raise UserError(f"{file} has no text in its first row; allowed: rows with a column of text.")
            return max(lengths, key=lambda name: lengths[name])
    raise UserError(f"{files[0]} is empty; allowed: rows with a column of text.")


def read_sample(files: Sequence[str], sample_by: str, column: str) -> tuple[list[str], float]:
    """Return documents, the first ones of large files, and about which share of the text they are."""
    most, documents, seen, read = max(OF_A_FILE, SAMPLE // len(files)), list[str](), 0, 0
    for file in random.Random(0).sample(files, len(files)):
        size, own = size_of(file), 0
        for batch in read_files([file], sample_by, Form("corpus", {"column": column})):
            texts = [text for text in batch if isinstance(text, str) and text.strip()]
            documents += texts
            own += sum(len(text.encode()) for text in texts)
            if own >= most:  # of a compressed file, that it is a third of the text is a guess
                size = min(size, own // (3 if packed(file) or kind_of(file) == "parquet" else 1))
                break
        seen, read = seen + own, read + size
        if seen >= SAMPLE:
            break
    return documents, max(1, read) / max(1, sum(map(size_of, files)))


def vocabulary(text: Text, most: int) -> tuple[int, float, float]:
    """Return a size up to `most` that the text has enough pieces for, and tokens per character. Raises UserError.

    The tokens are those of records, first of masked and then of causal models: of whole documents, with special tokens
    around each.
    """
    ends = np.cumsum([len(document) for document in text.sample])
    alphabet = len(most_of(Counter("".join(text.sample)), COVERAGE))
    trial = list(text.sample[: int(np.searchsorted(ends, TRIAL)) + 1])
    characters, whitespace = sum(map(len, trial)), "runs" if text.runs else "keep"
    smallest = alphabet + 300  # causal models have a piece for each byte, too
    size = max(smallest, min(most, text.characters // 100))
    while size >= smallest:
        try:
            # A trial has half as many more pieces, since some text is held out.
            asked = 3 * min(size, characters // 100) // 2
            train([trial], Recipe("unigram", max(smallest, asked), whitespace=whitespace))
            size = -(-size // 64) * 64
            tokenizer, _ = train([trial], Recipe("unigram", max(smallest, min(size, asked)), whitespace=whitespace))
            masked = sum(len(one.ids) for one in tokenizer.encode_batch_fast(trial))
            pieces = SentencePieceProcessor(model_proto=train_vocabulary(trial, size, "base.NAME.vocab_size"))
            causal = sum(map(len, pieces.encode(trial))) + 2 * len(trial)
            return size, masked / characters, causal / characters
        except UserError:
            size = 2 * size // 3
    raise UserError(
        f"{text.found}, {alphabet:,} different characters: too little is repeated for a vocabulary of {smallest:,} "
        "pieces; allowed: more text."
    )


def prompts_of(text: Text) -> tuple[list[str], list[str]]:
    """Return sentences of the text with a word masked, or a character where there are no words; and beginnings."""
    glue, found = " " if text.words else "", []
    for document in text.sample[:: max(1, len(text.sample) // 2000)]:
        for sentence in SENTENCE.findall(" ".join(document[:4000].split()))[:1]:
            found.append(sentence.split() if glue else list(sentence))
    found = [list(units) for units in dict.fromkeys(map(tuple, found)) if len(units) > 4]
    masked, apart = [], max(1, len(found) // 2)
    for units in found[::apart][:2]:
        places = [place for place, unit in enumerate(units) if place and unit.isalpha() and len(unit) > 3 * bool(glue)]
        for place in places[len(places) // 2 :][:1]:
            masked.append(glue.join([*units[:place], "[MASK]", *units[place + 1 :]]))
    return masked, [glue.join(units[: 3 if glue else 6]) for units in found[apart // 2 :: apart][:2]]


def steps(tokens: float, record: tuple[int, int], epochs: int, bounds: tuple[int, int], parts: int, rate: str) -> list:
    """Return the lines of a run that set its steps, batch size and learning rate.

    tokens  of the training split; record  batch size and tokens of a record; bounds  fewest and most steps
    parts   checkpoints
    """
    per_step, unit = math.prod(record), 100 * parts
    number = unit * round(min(max(epochs * tokens / per_step, bounds[0]), bounds[1]) / unit)
    return [
        f"steps: {number}   # about {number * per_step / tokens:,.1f} epochs",
        f"checkpoint_every: {number // parts}",
        f"batch_size: {record[0]}",
        f"learning_rate: {rate}",
        f"schedule: {{shape: wsd, warmup_steps: {number // 15}, decay_steps: {number // 3}}}",
        "optimizer: {weight_decay: 0.01, global_clipnorm: 1.0}",
    ]


def for_cpus(text: Text, characters: float) -> dict:
    """Return the values of CPUS, with which each model trains in minutes; characters  of the training split."""
    size, *rates = vocabulary(text, 4096 if text.characters < 16e6 else 8192)
    masked, causal = (rate * characters for rate in rates)
    return {
        "size": size,
        "length": 128,
        "shards": 2,
        "dropout": 0.0 if masked > 3e5 else 0.1,  # a short text is read many times
        "masked": steps(masked, (32, 128), 40, (300, 1500), 3, "2e-3"),
        "causal": steps(causal, (16, 128), 20, (300, 900), 3, "3e-3"),
    }


def for_slice(text: Text, characters: float, accelerator: str) -> dict:
    """Return the values of SLICE, with microbatches that fit a device. Raises UserError.

    characters  of the training split
    """
    hosts, plan, room = 1, "", 16  # records of 512 tokens on a device
    if re.fullmatch(GPU_PATTERN, accelerator):
        devices = parse_gpu(accelerator)[1]
    else:
        try:
            found = topology(accelerator)
        except UserError as error:
            raise UserError(f"--accelerator: {str(error).rstrip('.')}; or GPUs, such as h100:4.") from None
        devices, hosts, plan = found.devices, slice_hosts(accelerator), f"{{topologies: [{accelerator}]}}"
        room = 8 if found.hbm < 12 * GIB else 16
    if devices > MOST_HOST_DEVICES:
        raise UserError(f"--accelerator: {accelerator} has {devices:,} devices; allowed: {MOST_HOST_DEVICES} at most.")
    each = max(2, min(room, 512 // devices))
    parts = max(1, 512 // (each * devices))
    size, *rates = vocabulary(text, min(32_768, max(4096, text.characters // 1000)))
    masked, causal = (rate * characters for rate in rates)
    return {
        "size": size,
        "length": 512,
        "shards": min(1024, max(4, text.characters // 400_000_000)),
        "accelerator": accelerator,
        "parts": parts,
        "devices": devices,
        "hosts": hosts,
        "plan": plan and f"{plan}   # `snakemake plan` estimates memory and time",
        "masked": steps(masked, (parts * each * devices, 512), 40, (1000, 100_000), 10, "5e-4"),
        "causal": steps(causal, (parts * each // 2 * devices, 1024), 4, (500, 10_000), 5, "6e-4"),
    }


def config_of(text: Text, paths: Sequence[str], accelerator: str | None) -> str:
    """Return the config in YAML. Raises UserError."""
    # At least some documents and records are held out, and no more than are evaluated in seconds.
    least = HELD_OUT / text.documents
    share = min(LARGEST, max(0.05, 10_000 / text.characters, least), max(2e6 / text.characters, least))
    share = float(f"{share:.2g}")
    enough = ENOUGH if text.words else ENOUGH // 5  # without words, a vocabulary takes longer
    limit = 0 if accelerator else int(enough / text.characters * text.documents)
    splits = text.source.get("files")
    without_files = 3 - len(splits) if isinstance(splits, dict) else 2
    characters = text.characters * text.training * (1 - without_files * share)
    characters = min(characters, enough) if limit else characters
    values = for_slice(text, characters, accelerator) if accelerator else for_cpus(text, characters)
    for stage, indent in (("masked", "      "), ("causal", "    ")):
        values[stage] = "\n".join(indent + line for line in values[stage])
    masks, beginnings = prompts_of(text)
    named = Path(paths[0]).parent if len(paths) > 1 or glob.has_magic(paths[0]) else Path(paths[0])
    name = re.sub("[^a-z0-9_-]+", "-", named.stem.lower())[:64].strip("-_") or "text"
    name = f"{name}-text" if name in ("results", "logs") else name
    values |= {
        "found": text.found,
        "title": quoted(f"Language models of {named.stem or 'text'}"),
        "experiment": quoted(name),
        "files": quoted(text.source["files"]),
        "unit": text.source.get("sample_by", ""),
        "column": quoted(text.source["column"]) if "column" in text.source else "",
        "share": f"{share:g}",
        "limit": f"{limit}   # of each split; enough for these steps" if 0 < limit < text.documents else "",
        "runs": ", whitespace: runs" if text.runs else "",
        "why": "by the size of the text" + ("" if text.words else "; unigram needs no spaces between words"),
        "masks": quoted(masks),
        "beginnings": quoted(beginnings),
    }
    written = TEXT.substitute(values) + (SLICE if accelerator else CPUS).substitute(values)
    lines = [line for line in written.split("\n") if not line.endswith(": ")]  # a key without a value
    lines = [line for line, after in zip(lines, lines[1:], strict=False) if line or after]
    while len(lines) > LINES and "" in lines:
        lines.remove("")
    return "".join(f"{line}\n" for line in lines)


def quoted(value: object) -> str:
    """Return a value as JSON, which is YAML, too."""
    return json.dumps(value, ensure_ascii=False)


def estimate(config: Mapping) -> str:
    """Return how long the runs take at the speed of matrix products of a thread on this machine, which is measured."""
    one, other, times = np.ones((2048, 512), np.float32), np.ones((512, 512), np.float32), []
    for _ in range(10):
        start = time.perf_counter()
        one @ other
        times.append(time.perf_counter() - start)
    speed, found = 2 * 2048 * 512 * 512 / min(times), []
    for run in Outline(config).runs.values():
        recipe, size, length = run.recipe, model_size(run), run.tokens_per_step // run.recipe["batch_size"]
        masking = recipe.get("masking")
        head = predictions_per_record(length, masking["mlm_probability"]) / length if masking else 1
        weights = size.parameters - size.table * (1 - head) + 2 * size.layers * size.hidden * length
        found.append(f"{run.key} {6 * weights * run.tokens_per_step * recipe['steps'] / speed / 60:.1f} min")
    return (
        f"estimate: {', '.join(found)}, each on one CPU thread, at the measured {speed / 1e9:.0f} GFLOP/s. Training "
        "may take twice as long, and the other jobs take minutes."
    )


def planned(config: Mapping) -> str:
    """Return how to get an estimate for an accelerator."""
    if not config["plan"]["topologies"]:
        return "estimate: none, because only TPUs have plans."
    return "estimate: `snakemake plan --configfile my.yaml` compiles the runs and estimates memory and time."


def main() -> None:
    """Print the config of the text that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="+", help=f"a file of {ALLOWED}; a folder; a glob")
    parser.add_argument("--accelerator", help="a TPU slice such as v5e-8, or GPUs such as h100:4; default: CPUs")
    asked = parser.parse_args()
    try:
        text = look(asked.paths)
        written = config_of(text, asked.paths, asked.accelerator)
        config = complete(YAML(typ="safe", pure=True).load(written), "the config")
        parts_of("corpus", config["corpus"])  # its globs find the files
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"found: {text.found}", planned(config) if asked.accelerator else estimate(config), sep="\n", file=sys.stderr)
    print(written, end="")


if __name__ == "__main__":
    main()
