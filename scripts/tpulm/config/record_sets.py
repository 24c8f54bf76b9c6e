"""Sets of records: which a config has, their files, and how the documents of a text become records.

A set is one folder: the shards of its splits and a manifest. Runs that read the same records share a set.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tpulm.core.errors import UserError
from tpulm.core.user_files import matching_files
from tpulm.specs.artifacts import MANIFEST, SPLITS
from tpulm.specs.phases import WHOLE_TEXT, Phase
from tpulm.specs.texts import has_responses


@dataclass(frozen=True)
class RecordSet:
    """The records of one text in one vocabulary.

    folder           below results/
    collection       the text: a folder below results/
    base             name under base that has the vocabulary; None for the tokenizer of the masked models
    sequence_length  tokens of a record that a model reads
    packing          how documents become records: concat, segments or pad
    shards_here      number of shards of each split that are written here
    shards_key, length_key   keys of the config for shards and sequence_length
    responses        whether records mark the tokens of responses, as for a text with responses
    chat             whether a chat template has written documents of the text
    globs            globs of each split's external files, a shard each; empty for records of the text
    source           the only source of the text that they are of; WHOLE_TEXT for all
    """

    folder: str
    collection: str
    base: str | None
    sequence_length: int
    packing: str
    shards_here: Mapping[str, int]
    shards_key: str
    length_key: str
    responses: bool = False
    chat: bool = False
    globs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = WHOLE_TEXT

    @cached_property
    def external_files(self) -> dict[str, tuple[str, ...]]:
        """The external files of each split. Raises UserError as `shard_files` does."""
        return shard_files(self.globs) if self.globs else {}

    @cached_property
    def shards(self) -> Mapping[str, int]:
        """The number of shards of each split. Raises UserError as `shard_files` does."""
        return {split: len(files) for split, files in self.external_files.items()} or self.shards_here

    @property
    def tokens_per_record(self) -> int:
        """Tokens of a record: one more than a causal model reads, since each but the first is predicted."""
        return self.sequence_length + (self.base is not None)

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The shards of each split below the folder, without extension."""
        return {
            split: [f"{split}/{number:05d}-of-{count:05d}" for number in range(count)]
            for split, count in self.shards.items()
        }

    @cached_property
    def files(self) -> list[str]:
        """The files of all shards below the folder: records, and the index of their offsets."""
        names = (name for split in self.names.values() for name in split)
        return [name + extension for name in names for extension in (".tfrecord", ".index")]

    @property
    def manifest(self) -> str:
        """The file that has the checksum of every shard."""
        return f"<results>/{self.folder}/{MANIFEST}"

    @property
    def token_counts(self) -> str:
        """The file with the frequencies of tokens in the training split."""
        return f"<results>/{self.folder}/token_counts.npy"

    @property
    def layout(self) -> dict:
        """The recipe of the jobs that write the records."""
        return {
            "sequence_length": self.sequence_length,
            "tokens_per_record": self.tokens_per_record,
            "packing": self.packing,
            "shards_key": self.shards_key,
            "length_key": self.length_key,
            **self.loss,
            **({"chat": True} if self.chat else {}),
        }

    @property
    def loss(self) -> dict:
        """The key `responses` of training steps and manifests; empty if all tokens are predicted."""
        return {"responses": True} if self.responses else {}


def masked_records(config: Mapping) -> RecordSet:
    """Return the records of the masked models."""
    section = config["tfrecords"]
    return RecordSet(
        folder="tfrecords",
        collection="corpus",
        base=None,
        sequence_length=section["sequence_length"],
        packing=section["packing"],
        shards_here={split: section["shards"][split] for split in SPLITS},
        shards_key="tfrecords.shards",
        length_key="tfrecords.sequence_length",
        globs=section["files"] if section["source"] == "files" else {},
    )


def corpus_records(config: Mapping, base: str, sequence_length: int) -> RecordSet:
    """Return the records of the corpus in the vocabulary of a base model.

    A base model of this sequence length is trained on them. Otherwise only the validation split is written, which
    measures what finetuning has forgotten.
    """
    recipe = config["base"][base]
    packing = recipe["packing"] if "model" in recipe else "concat"
    trained_on = "model" in recipe and recipe["sequence_length"] == sequence_length
    shards = {split: recipe["shards"][split] for split in SPLITS} if trained_on else {"validation": 1}
    return causal_records(config, base, "corpus", sequence_length, packing, shards, f"base.{base}.shards")


def tuning_records(config: Mapping, recipe: Mapping) -> RecordSet:
    """Return the records of finetune.text for a finetuning run: in the vocabulary of its base model."""
    shards = {split: config["finetune"]["shards"][split] for split in SPLITS}
    length, packing = recipe["sequence_length"], recipe["packing"]
    return causal_records(config, recipe["base"], "finetune-text", length, packing, shards, "finetune.shards")


def causal_records(
    config: Mapping,
    base: str,
    collection: str,
    sequence_length: int,
    packing: str,
    shards: Mapping[str, int],
    shards_key: str,
) -> RecordSet:
    """Return records for causal models."""
    text = config["corpus"] if collection == "corpus" else config["finetune"]["text"]
    return RecordSet(
        folder=f"tokens/{base}/{collection}/{packing}-{sequence_length}",
        collection=collection,
        base=base,
        sequence_length=sequence_length,
        packing=packing,
        shards_here=shards,
        shards_key=shards_key,
        length_key="sequence_length",
        responses=has_responses(text),
        chat="chat_template" in text,
    )


def phase_records(own: RecordSet, phases: Iterable[Phase]) -> dict[tuple[str, int], RecordSet]:
    """Return the records that the phases of a run read, by source and length.

    own  the run's own records. Others have a training split only; of a source, also a validation split of the run's own
         length, which measures the loss by source
    """
    needed = {(source, phase.sequence_length): ["train"] for phase in phases for source in phase.shares}
    for source in [source for source, _ in needed if source != WHOLE_TEXT]:
        needed.setdefault((source, own.sequence_length), []).append("validation")
    stem = own.folder if own.base is None else os.path.dirname(own.folder)
    own_key = WHOLE_TEXT, own.sequence_length
    return {
        (source, length): own
        if (source, length) == own_key
        else replace(
            own,
            folder="/".join(filter(None, (stem, source, f"{own.packing}-{length}"))),
            source=source,
            sequence_length=length,
            shards_here={split: own.shards_here[split] for split in dict.fromkeys(splits)},
        )
        for (source, length), splits in needed.items()
    }


def by_folder(sets: Iterable[RecordSet]) -> dict[str, RecordSet]:
    """Return sets of records by folder; those of one folder, which several runs read, with the splits of all."""
    found: dict[str, RecordSet] = {}
    for records in sets:
        known = found.get(records.folder, records)
        found[records.folder] = replace(known, shards_here={**known.shards_here, **records.shards_here})
    return found


def no_records() -> list[str]:
    """Raise UserError: the config has no records."""
    raise UserError(
        "the config defines no records; for masked models, add the section tfrecords, such as "
        "tfrecords: {sequence_length: 128}, and for causal models a run under base or finetune.runs."
    )


def shard_files(files: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the files of each split, sorted, for its globs. Raises UserError for a glob without files."""
    matches: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        by_glob = (matching_files(f"tfrecords.files.{split}", pattern, "*.tfrecord") for pattern in files[split])
        matches[split] = tuple(sorted({path for paths in by_glob for path in paths}))
    seen: dict[str, str] = {}
    for split, paths in matches.items():
        for path in paths:
            earlier = seen.setdefault(os.path.normpath(path), split)
            if earlier != split:
                raise UserError(
                    f"tfrecords.files: {path} is in {earlier} and in {split}; allowed: each file in one split, because "
                    "models are evaluated on records that they are not trained on."
                )
    return matches


def check_records_elsewhere(config: Mapping) -> None:
    """Check that external records have a pretrained tokenizer and a packing without segments. Raises UserError."""
    if config.get("tfrecords", {}).get("source") != "files":
        return
    if "pretrained" not in config["tokenizer"]:
        raise UserError(
            "tfrecords.source is files, but the tokenizer is trained here; allowed: tokenizer.pretrained, the "
            "tokenizer that the files were written with."
        )
    if config["tfrecords"]["packing"] == "segments":
        raise UserError(
            "tfrecords.packing is segments with source: files, whose records do not mark documents; allowed: "
            "concat, pad."
        )
