"""Tokenize, group and write shards as the published procedure does, with `datasets` and TensorFlow.

    python benchmarks/published_shards.py TEXT TOKENIZER OUTPUT

From its description: load the text with `datasets`; tokenize examples in batches; concatenate the examples of a batch
and cut them into pieces of one length; serialise pieces as tf.train.Example; write them to shards with TensorFlow.
"""

import os
import sys
from itertools import chain
from pathlib import Path

import datasets
import tensorflow as tf
from transformers import AutoTokenizer

LENGTH = 128
SHARD = 5_000  # records
PROCESSES = os.cpu_count()


def main(text: str, tokenizer_folder: str, output: Path) -> None:
    """Write the shards of a text file, a document per line."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    dataset = datasets.load_dataset("text", data_files=text, split="train", cache_dir=str(output / "cache"))

    def tokenize(batch: dict) -> dict:
        encoded = tokenizer(batch["text"])
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}

    def group(batch: dict) -> dict:
        joined = {key: list(chain(*values)) for key, values in batch.items()}
        whole = len(joined["input_ids"]) // LENGTH * LENGTH
        return {
            key: [values[start : start + LENGTH] for start in range(0, whole, LENGTH)] for key, values in joined.items()
        }

    tokenized = dataset.map(tokenize, batched=True, num_proc=PROCESSES, remove_columns=["text"])
    grouped = tokenized.map(group, batched=True, batch_size=1000, num_proc=PROCESSES)
    for start in range(0, len(grouped), SHARD):
        piece = grouped[start : start + SHARD]
        with tf.io.TFRecordWriter(str(output / f"train-{start // SHARD}.tfrecord")) as file:
            for row in range(len(piece["input_ids"])):
                features = {
                    key: tf.train.Feature(int64_list=tf.train.Int64List(value=piece[key][row]))
                    for key in ("input_ids", "attention_mask")
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                file.write(example.SerializeToString())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
