"""List the shards that trainers read; rewrite those that were deleted since the manifest was made.

Trainers read the manifest. The list tells Snakemake that all shards of the manifest were there.

input.manifest                   manifest.json
input.train, .validation, .test  Parquet files with a column `text`, one document per row; of the splits that there are.
                                 With made_elsewhere the TFRecord files that the shards are copies of
input.lengths                    NumPy arrays: characters of each document of each of these files
input.tokenizer                  tokenizer.json; for causal models vocabulary.spm or a preset folder
output                           JSON: for each split the shards, below the folder of this file
params.recipe                    causal, for which models; folder, where the shards are: a path or a URL; packing,
                                 sequence_length, tokens_per_record; shards_key and length_key, their config keys;
                                 responses, true where records say which tokens belong to one; made_elsewhere, true
                                 where the shards are copies
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tpulm.config.record_sets import files_of_shard
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

recipe, records = snakemake.params.recipe, snakemake.wildcards.records
listing = Path(snakemake.output[0])
folder = recipe["folder"] if bucket.remote(recipe["folder"]) else str(listing.parent)


def encoded(files: list[str], part: dict) -> tuple[Iterator, int]:
    """Return the documents of a shard as ids, and how many special tokens close each; as the shard's own job does.

    files  those that its documents are in; part  which of these documents
    """
    if recipe["causal"]:
        from tpulm.corpus.reader import read_responses, read_texts
        from tpulm.tokenization.causal import CLOSING, load_tokenizer, tokenize
        from tpulm.training import runtime

        tokenizer = load_tokenizer(snakemake.input.tokenizer, lambda: runtime.start(cpu_threads=1))
        place = files, part["start"], part["stop"]
        responses = read_responses(*place) if recipe.get("responses") else None
        return tokenize(read_texts(*place), tokenizer, responses), CLOSING
    from tpulm.corpus.reader import read_batches
    from tpulm.tokenization.encoding import template, tokenize
    from tpulm.tokenization.folder import load

    tokenizer = load(snakemake.input.tokenizer)
    documents = read_batches(files, part["start"], part["stop"])
    return tokenize(tokenizer, documents), len(template(tokenizer)[1])


def written(files: list[tuple[str, str]], number: int, manifest: dict, split: str, target: Path) -> dict:
    """Write shard `number` of a split from its documents; return what a manifest says of it.

    files   those of the split's documents, each with that of their lengths
    target  the file to write
    """
    from tpulm.records.packing import range_of_job
    from tpulm.records.shard_writer import write_shard

    shards = len(manifest["splits"][split]["shards"])
    own = [files[file] for file in files_of_shard(number, shards, len(files))]
    part = range_of_job(
        [lengths for _, lengths in own], recipe | {"shards": shards, "files": len(files)}, split, number, shards
    )
    documents, closing = encoded([file for file, _ in own], part)
    return write_shard(documents, recipe, manifest["special_ids"]["pad"], closing, target, part["documents"])


def rewrite(shard: dict, make: Callable[[Path], dict]) -> None:
    """Write a shard and its index again. Raises UserError when they have not the bytes that the manifest says.

    shard  what the manifest says of it
    make   writes them, and returns what a manifest says of them
    """
    split = os.path.dirname(shard["file"])
    # Beside the shards, so that a file takes its place in one step, once its bytes are known to be right.
    with tempfile.TemporaryDirectory(dir=listing.parent, prefix=".") as temporary:
        target = Path(temporary)
        (target / split).mkdir()
        if make(target / shard["file"]) != shard:
            stem = shard["file"].removesuffix(".tfrecord")
            raise UserError(
                f"{shard['file']} was deleted, and written again it has other bytes than the manifest says; to take "
                f"the new bytes, delete results/{records}/manifest.json and results/{records}/{stem}.json and run "
                "again: what was trained on the shard is trained again."
            )
        for name in (shard["file"], shard["index"]):
            if bucket.remote(folder):
                bucket.upload(target / name, f"{folder}/{name}")
            else:
                os.makedirs(f"{folder}/{split}", exist_ok=True)
                os.replace(target / name, f"{folder}/{name}")


with job(snakemake.log[0], records) as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.records.made_elsewhere import take_shard
    from tpulm.workflow.shards import missing

    manifest = read_json(snakemake.input.manifest)
    shards = {split: entry["shards"] for split, entry in manifest["splits"].items()}
    files = [shard[file] for split in shards.values() for shard in split for file in ("file", "index")]
    absent = set(missing(folder, files))
    lengths = iter(snakemake.input.lengths)
    for split, entries in shards.items() if absent else ():
        sources = list(map(str, snakemake.input[split]))
        documents = [] if recipe.get("made_elsewhere") else [(file, next(lengths)) for file in sources]
        for number, shard in enumerate(entries):
            if not absent.isdisjoint((shard["file"], shard["index"])):
                if recipe.get("made_elsewhere"):
                    rewrite(shard, partial(take_shard, sources[number], expected=recipe | manifest))
                else:
                    rewrite(shard, partial(written, documents, number, manifest, split))
                say(f"{shard['file']} was deleted, and is written again")
    write_json(listing, {split: [shard["file"] for shard in entries] for split, entries in shards.items()})
