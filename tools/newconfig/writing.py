"""Write a config."""

import glob
import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from newconfig.prompts import prompts_of
from newconfig.sample import HELD_OUT, LARGEST, Text
from newconfig.sizes import for_cpus, for_slice

ENOUGH = 200_000_000  # characters; the steps on CPUs read a fraction of it
LINES = 40  # of the config

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
