"""Read artifacts back from the disk and report what is damaged.

A check yields a sentence for each damage; it raises nothing for what it finds in a file.
"""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors import safe_open

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, read_json, sha256
from tpulm.core.past_jobs import makers
from tpulm.core.scores import read_scores
from tpulm.corpus.documents import RESPONSES, read_batches
from tpulm.corpus.statistics import Figures, combined
from tpulm.records.external import damage_of
from tpulm.records.tfrecord import scan
from tpulm.specs.artifacts import (
    ARRAY_FILES,
    CHECKPOINT_ARRAYS,
    CHECKPOINT_FILES,
    EXPORTED,
    KEPT_FOLDERS,
    MANIFEST,
    MODEL_FILES,
    PRUNED,
    SHARD_INDEX,
    TOKENIZER_FILES,
    lengths_file,
)
from tpulm.training import checkpoint
from tpulm.training.history import FIGURES, TIMINGS


def attempt(path: Path, read: Callable[[Path], Any]) -> tuple[Any, list[str]]:
    """Return what reading a file gave, None where it failed, and the damage that this is."""
    if not path.exists():
        return None, [f"{path} is missing."]
    try:
        return read(path), []
    except UserError as error:
        return None, [str(error)]
    except Exception as error:  # whatever the libraries raise for bytes that are not what they expect
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, [f"{path} cannot be read: {lines[0][:200]}"]


def read_hdf5(path: Path) -> None:
    """Read every dataset of an HDF5 file. Raises OSError when it is not whole."""
    import h5py

    with h5py.File(path) as file:
        file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)


# What was measured on, the costliest operations; what weights a chain began with; what is compared, and what came out.
TEXT_COLUMNS = {
    "devices", "software", "profile", "weights", "selected", "stage", "run", "settings", "first", "second", "score",
    "higher_is_better", "verdict", "because",
}  # fmt: skip


def read_csv(path: Path) -> None:
    """Read a table. Raises UserError for a row without a cell, or without the number, of each column.

    Cells are numbers or empty but for those of TEXT_COLUMNS; what training writes in every row is never empty.
    """
    columns = {"history.csv": FIGURES, "timings.csv": TIMINGS}.get(path.name, ())
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file, strict=True)
        head = next(rows, None)
        if not head:
            raise UserError(f"{path} is corrupt: it is empty.")
        if tuple(head[: len(columns)]) != columns:
            raise UserError(f"{path} is corrupt: its columns do not begin with {', '.join(columns)}.")
        for row in rows:
            try:
                for name, cell in zip(head, row, strict=True):
                    if name in columns or (cell and name not in TEXT_COLUMNS):
                        float(cell)
            except ValueError:
                kind = f"not a row of the columns {', '.join(head)}"
                raise UserError(f"{path} is corrupt: {json.dumps(','.join(row))[:100]} is {kind}.") from None


def check_scores(folder: Path) -> Iterator[str]:
    """Compare the scores of a folder with the values by item beside them: each is the mean of its own."""
    read, damages = attempt(folder / "scores.json", read_scores)
    yield from damages
    table, damages = attempt(folder / "items.parquet", pq.read_table)
    yield from damages
    if read is None or table is None:
        return
    values = defaultdict(list)
    for row in table.select(["score", "value"]).to_pylist():
        values[row["score"]].append(row["value"])
    for score in read[1]:
        own = values.pop(score.name, [])
        if score.low is None and not own:  # no mean over items, such as a perplexity
            continue
        if len(own) != score.items or not math.isclose(sum(own) / max(len(own), 1), score.value, abs_tol=1e-9):
            yield f"{folder}/scores.json is corrupt: {score.name} is not the mean of its items in items.parquet."
    for name in values:
        yield f"{folder}/items.parquet has the score {name}, which scores.json does not have."


def read_shard(path: Path, manifest: dict) -> list[int]:
    """Return where each record of a shard ends. Raises UserError for one that is not as it was written."""
    ends: list[int] = []
    start = 0
    for stop, data in scan(path):
        damage = damage_of(data, manifest)
        if damage:
            raise UserError(f"{path} is corrupt at bytes {start} to {stop} (record {len(ends)}): {damage}")
        ends.append(stop)
        start = stop
    return ends


PRESET = ("config.json", "model.weights.h5", "tokenizer.json")


def verify(expected: dict, results: Path) -> Iterator[tuple[str, list[str] | None]]:
    """Yield the name of each artifact and its damages; None where it has not been built.

    expected  all of what `artifacts` takes
    results   their folder
    """
    yield from artifacts(expected, results)
    yield examine(results, "", check_texts)


def check_records(jobs: list[dict[str, Any]], results: Path) -> Iterator[tuple[str, str]]:
    """Yield each file below `results` that is not as its job left it, and the sentence that says so.

    Its SHA-256 has changed, or it is gone though what was made of it is there. The arrays of a pruned checkpoint are
    not missed, nor models of checkpoints, which are deleted after use, nor what the history tells of.

    jobs  of `tpulm.core.past_jobs.jobs_of`
    """

    def ours(path: str) -> bool:
        below = Path(path).relative_to(results) if Path(path).is_relative_to(results) else Path(KEPT_FOLDERS[0])
        return below.parts[0] not in KEPT_FOLDERS and not below.is_relative_to(EXPORTED.removeprefix("<results>/"))

    for path, job in makers(jobs).items():
        known = job["outputs"][path]
        if known and ours(path) and Path(path).is_file() and sha256(path) != known:
            yield path, f"{path} is corrupt: its SHA-256 is not the one that {job['rule']} recorded."
    of_there = [job for job in jobs if any(ours(path) and Path(path).exists() for path in job["outputs"])]
    read = {path for job in of_there for path in job["inputs"] if ours(path)}
    for path in sorted(path for path in read if not Path(path).exists()):
        if not (Path(path).name in ARRAY_FILES and Path(path).with_name(PRUNED).exists()):
            yield path, f"{path} is missing."


def refuse_damaged(expected: dict, results: Path) -> None:
    """Read artifacts back. Raises UserError for the first damage."""
    nothing: dict = {"collections": {}, "tokenizers": [], "records": {}, "chains": {}}
    nothing |= {"mlm": [], "asked": [], "base": [], "adapters": [], "tuned": [], "transformers": []}
    nothing |= {"scores": []}
    for _, damages in artifacts(nothing | expected, results):
        if damages:
            raise UserError(f"{damages[0].rstrip('.')}; it is not published; `snakemake verify` lists all errors.")


def artifacts(expected: dict, results: Path) -> Iterator[tuple[str, list[str] | None]]:
    """Yield the name of each of the artifacts named and its damages; None where it has not been built.

    results   their folder
    expected  collections (name to the files of each split, below results); tokenizers (their folders); records
              (folder below results to shards, their names by split, and vocabulary, the file that they were made with,
              where that is below results); chains (folder below results to the steps of its checkpoints); mlm, asked
              (masked models with a tokenizer of their own) and base (names); adapters and tuned (finetuning runs that
              have LoRA weights, and those that have a whole model);
              transformers (causal models that may have a folder of transformers, as STAGE/RUN); scores (models that
              are scored, as STAGE/RUN)
    """
    for collection, files in expected["collections"].items():
        yield examine(results / collection, "corpus.json", partial(check_corpus, files=files))
    for folder in expected["tokenizers"]:
        yield examine(results / folder, "tokenizer.json", check_tokenizer)
    for folder, records in expected["records"].items():
        vocabulary = results / records["vocabulary"] if records["vocabulary"] else None
        check = partial(check_shards, expected=records["shards"], vocabulary=vocabulary)
        yield examine(results / folder, MANIFEST, check)
    for chain, steps in expected["chains"].items():
        first = f"{steps[0]:08d}/{CHECKPOINT_FILES['state']}"
        yield examine(results / chain / "checkpoints", first, partial(check_chain, steps=steps))
    for run in expected["mlm"]:
        yield examine(results / "mlm" / run / "model", "model.safetensors", check_model)
    for run in expected["asked"]:
        yield examine(results / "mlm" / run / "model", "model.safetensors", partial(check_model, own=True))
    for name in expected["base"]:
        yield examine(results / "base" / name / "preset", "", check_preset)
    for run in expected["adapters"]:
        yield examine(results / "finetune" / run, "adapter.lora.h5", check_adapter)
    for run in expected["tuned"]:
        yield examine(results / "finetune" / run / "model", "", check_preset)
    for model in expected["transformers"]:
        if (results / "transformers" / model).exists():  # of a base model that was fetched, only when asked for
            yield examine(results / "transformers" / model, "", check_causal)
    for model in expected["scores"]:
        yield examine(results / "evaluation" / model, "scores.json", check_scores)


def examine(folder: Path, mark: str, check: Callable[[Path], Iterator[str]]) -> tuple[str, list[str] | None]:
    """Return an artifact's name and damages; None where the file `mark` of its folder is absent."""
    return str(folder), list(damages_of(folder, check)) if (folder / mark).exists() else None


def damages_of(folder: Path, check: Callable[[Path], Iterator[str]]) -> Iterator[str]:
    """Yield the damages of an artifact, and where a file of it is JSON but has not the keys that were written."""
    try:
        yield from check(folder)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        yield f"{folder} has a JSON file of another form: {type(error).__name__}: {error}."


def check_corpus(folder: Path, files: dict[str, list[str]]) -> Iterator[str]:
    """Compare the documents of a corpus, and the parts that it was built from, with what is recorded of them.

    files  those of each split, below the folder in which this one is
    """
    for path in sorted((folder / "parts").glob("?????.json")):
        record, damages = attempt(path, read_json)
        yield from damages
        part = path.with_suffix(".parquet")
        if record is not None and attempt(part, sha256)[0] != record["sha256"]:
            yield f"{part} is corrupt or missing: its SHA-256 is not the one that {path.name} has."
    record, damages = attempt(folder / "corpus.json", read_json)
    yield from damages
    for split, names in files.items():
        paths = [folder.parent / name for name in names]
        found = [attempt(path, figures_of) for path in paths]
        yield from (damage for _, damages in found for damage in damages)
        if record is not None and not any(damages for _, damages in found):
            figures = combined([told for (told, _), _ in found])
            if {key: record["splits"][split].get(key) for key in figures} != figures:
                what = f"{paths[0]} is corrupt: its" if len(paths) == 1 else f"{folder / split} is corrupt: the"
                yield f"{what} documents are not those that corpus.json describes."
            for path, ((_, whole), _) in zip(paths, found, strict=True):
                if not whole:
                    yield f"{lengths_file(str(path))} is corrupt: the lengths are not those of the documents beside it."


def figures_of(path: Path) -> tuple[dict, bool]:
    """Return the figures of a Parquet file, as corpus.json has them, and whether the lengths beside it are right."""
    names = pq.ParquetFile(path).schema_arrow.names
    if names not in (["text"], ["text", RESPONSES.name]):
        raise UserError(f"{path} has columns other than text and, with responses, {RESPONSES.name}.")
    figures = Figures()
    columns = [read_batches(str(path), column=name) for name in names]
    for texts, *responses in zip(*columns, strict=True):
        figures.add(texts, sum(len(text.split()) for text in texts.to_pylist()), *responses)
    lengths, _ = attempt(Path(lengths_file(str(path))), np.load)
    return figures.as_dict(), lengths is not None and np.array_equal(lengths, np.concatenate(figures.lengths))


def check_tokenizer(folder: Path) -> Iterator[str]:
    """Load a tokenizer."""
    from tokenizers import Tokenizer

    for name in list(TOKENIZER_FILES.values())[1:]:
        yield from attempt(folder / name, read_json)[1]
    tokenizer = folder / "tokenizer.json"
    yield from attempt(tokenizer, lambda path: Tokenizer.from_file(str(path)))[1]


def check_shards(folder: Path, expected: dict[str, list[str]], vocabulary: Path | None) -> Iterator[str]:
    """Read every record of every shard; compare with the manifest, and the vocabulary with what it says of that."""
    manifest, damages = attempt(folder / MANIFEST, read_json)
    yield from damages
    if manifest is None:
        return
    if vocabulary and vocabulary.exists() and sha256(vocabulary) != manifest["tokenizer_sha256"]:
        yield f"{vocabulary} is not the tokenizer that {folder}/{MANIFEST} lists: their SHA-256 differ."
    for split, names in expected.items():
        shards = manifest["splits"].get(split, {"shards": []})["shards"]
        if [str(folder / shard["file"]) for shard in shards] != [str(folder / f"{name}.tfrecord") for name in names]:
            yield f"{folder}/{MANIFEST} does not list the shards of {split} in the config."
        for shard in shards:
            yield from check_shard(folder, shard, manifest)


def check_shard(folder: Path, shard: dict, manifest: dict) -> list[str]:
    """Return the first damage of a shard: framing, checksums, lengths, ids, index, and the manifest's SHA-256."""
    path, index = folder / shard["file"], folder / shard["index"]
    ends, damages = attempt(path, lambda path: read_shard(path, manifest))
    if damages:
        return damages
    if len(ends) != shard["records"]:
        return [f"{path} has {len(ends)} records; {MANIFEST} says {shard['records']}."]
    if sha256(path) != shard["sha256"]:
        return [f"{path} is intact, but is not the shard that {MANIFEST} lists: their SHA-256 differ."]
    places, damages = attempt(index, lambda path: np.fromfile(path, "<u8").tolist())
    if damages or places != [0, *ends]:
        return damages or [f"{index} is corrupt: it does not say where the records of {path} begin."]
    return []


def check_chain(folder: Path, steps: list[int]) -> Iterator[str]:
    """Compare each checkpoint of a run with its state, and each state with the one before."""
    before = None
    for step in steps:
        here = folder / f"{step:08d}"
        parts = {name: str(here / CHECKPOINT_FILES[name]) for name in CHECKPOINT_ARRAYS}
        state_file = here / CHECKPOINT_FILES["state"]
        state, damages = attempt(state_file, lambda path: checkpoint.read_state(str(path)))
        yield from damages
        if state is None:
            before = None
            continue
        if state["step"] != step:
            yield f"{state_file} says step {state['step']}."
        if before and state["previous_sha256"] != sha256(before):
            yield f"the chain is broken at {here}: it was not trained from {before.parent.name}."
        before = state_file
        pruned = (here / PRUNED).exists()
        for name, path in parts.items():
            if pruned and not Path(path).exists():
                continue
            found, damages = attempt(Path(path), sha256)
            if found and found != state["sha256"][name]:
                damages = [f"{path} is corrupt: its SHA-256 is not the one in {CHECKPOINT_FILES['state']} beside it."]
            yield from damages or attempt(Path(path), load_arrays)[1]


def check_model(folder: Path, own: bool = False) -> Iterator[str]:
    """Look through a Hugging Face folder: complete, readable, all of one vocabulary; with `own`, of its own one."""
    for name in MODEL_FILES:
        yield from attempt(folder / name, read_json if name.endswith(".json") else shapes)[1]
    config, _ = attempt(folder / "config.json", read_json)
    found, _ = attempt(folder / "model.safetensors", shapes)
    if config is not None and found:
        rows = {shape[0] for name, shape in found.items() if name.endswith("word_embeddings.weight")}
        if rows and rows != {config.get("vocab_size")}:
            yield f"{folder} is corrupt: config.json says vocab_size {config.get('vocab_size')}, the weights {rows}."
    made_with = folder.parents[2] / "tokenizer" / "tokenizer.json"
    if not own and made_with.exists() and (folder / "tokenizer.json").exists():
        if sha256(made_with) != sha256(folder / "tokenizer.json"):
            yield f"{folder}/tokenizer.json is not {made_with}."


def check_causal(folder: Path) -> Iterator[str]:
    """Look through a folder of transformers of a causal model: complete, readable, all weights of one vocabulary."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        yield from attempt(folder / name, read_json)[1]
    yield from check_tokenizer(folder)
    config, _ = attempt(folder / "config.json", read_json)
    index, damages = attempt(folder / SHARD_INDEX, read_json) if (folder / SHARD_INDEX).exists() else ({}, [])
    yield from damages
    files = sorted(set((index or {}).get("weight_map", {"": "model.safetensors"}).values()))
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        read, damages = attempt(folder / file, shapes)
        yield from damages
        found |= read or {}
    rows = found.get("model.embed_tokens.weight", (None,))[0]
    if config is not None and rows is not None and rows != config.get("vocab_size"):
        yield f"{folder} is corrupt: config.json says vocab_size {config.get('vocab_size')}, the weights {rows}."


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a safetensors file, after reading every byte."""
    sha256(path)
    with safe_open(path, "np") as file:  # of whose tensors NumPy cannot hold those in bfloat16
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)


def check_preset(folder: Path) -> Iterator[str]:
    """Look through a Keras preset folder; compare with the fingerprint beside it, where there is one."""
    for name in PRESET:
        yield from attempt(folder / name, read_json if name.endswith(".json") else read_hdf5)[1]
    said, _ = attempt(folder.with_name(f"{folder.name}.json"), read_json)
    found = fingerprints(folder)
    for name in sorted(set(said or {}) | set(found) if said else ()):
        if said.get(name) != found.get(name):
            yield f"{folder / name} is corrupt: its SHA-256 is not the one in {folder.name}.json beside the folder."


def check_adapter(folder: Path) -> Iterator[str]:
    """Look through the LoRA weights of a run, Keras' and PEFT's."""
    yield from attempt(folder / "adapter.lora.h5", read_hdf5)[1]
    yield from attempt(folder / "adapter.lora.json", read_json)[1]
    yield from attempt(folder / "adapter" / "adapter_model.safetensors", shapes)[1]
    yield from attempt(folder / "adapter" / "adapter_config.json", read_json)[1]


def check_texts(folder: Path) -> Iterator[str]:
    """Read every JSON and CSV file that the other checks do not open, and look for figures that are empty."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            yield from attempt(path, read_json)[1]
        elif path.suffix == ".csv":
            yield from attempt(path, read_csv)[1]
        elif path.suffix in (".svg", ".html") and not path.stat().st_size:
            yield f"{path} is empty."
