"""List the shards that trainers read; rewrite those that were deleted since the manifest was made.

Trainers read the manifest. The list tells Snakemake that all shards of the manifest were there.

input.manifest                   tfrecords/manifest.json
input.train, .validation, .test  Parquet, one column `text`, one document per row
input.ranges                     JSON per split: which documents belong to which shard
input.tokenizer                  tokenizer.json
output                           JSON: for each split the shards, below the folder of this file
params.recipe                    sequence_length, tokens per record; folder, where the shards are: a path or a URL
"""

import os
import tempfile
from pathlib import Path

from tpulm.config.artifacts import SPLITS
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe
listing = Path(snakemake.output[0])
folder = recipe["folder"] if bucket.remote(recipe["folder"]) else str(listing.parent)

with job(snakemake.log[0], "tfrecords") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.workflow.shards import missing

    manifest = read_json(snakemake.input.manifest)
    shards = {split: manifest["splits"][split]["shards"] for split in SPLITS}
    files = [shard[file] for split in SPLITS for shard in shards[split] for file in ("file", "index")]
    absent = set(missing(folder, files))
    for number, split in enumerate(SPLITS if absent else ()):
        for shard, part in zip(shards[split], read_json(snakemake.input.ranges[number]), strict=True):
            names = (shard["file"], shard["index"])
            if absent.isdisjoint(names):
                continue
            from tpulm.corpus.reader import read_batches
            from tpulm.records.shard_writer import write_shard
            from tpulm.tokenization.encoding import tokenize
            from tpulm.tokenization.folder import load

            documents = read_batches(snakemake.input[split], part["start"], part["stop"])
            ids = tokenize(load(snakemake.input.tokenizer), documents)
            # Beside the shards, so that a file takes its place in one step, once its bytes are known to be right.
            with tempfile.TemporaryDirectory(dir=listing.parent, prefix=".") as temporary:
                target = Path(temporary)
                (target / split).mkdir()
                made = write_shard(ids, recipe["sequence_length"], target / shard["file"], part["documents"])
                if made != shard:
                    stem = shard["file"].removesuffix(".tfrecord")
                    raise UserError(
                        f"{shard['file']} was deleted, and written again it has other bytes than the manifest says; to "
                        f"take the new bytes, delete results/tfrecords/manifest.json and results/tfrecords/{stem}.json "
                        "and run again: what was trained on the shard is trained again."
                    )
                for name in names:
                    if bucket.remote(folder):
                        bucket.upload(target / name, f"{folder}/{name}")
                    else:
                        os.makedirs(f"{folder}/{split}", exist_ok=True)
                        os.replace(target / name, f"{folder}/{name}")
            say(f"{shard['file']} was deleted, and is written again")
    write_json(listing, {split: [shard["file"] for shard in shards[split]] for split in SPLITS})
