"""What the jobs that write shards read: documents, their lengths, a tokenizer."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from snakemake.io import ancient

from tpulm.config.artifacts import lengths_file
from tpulm.config.record_sets import RecordSet, files_of_shard


class ShardInputs:
    """Inputs and params of the jobs that write shards; each takes a set of records and the wildcards of its job."""

    def __init__(
        self,
        record_sets: Mapping[str, RecordSet],
        documents: Mapping[tuple[str, str], Sequence[str]],
        trained_bases: Container[str],
        in_place: Callable[[str], Any],
        text: Callable[[str], Any],
    ):
        """Take what the config says.

        record_sets    sets of records by their folders below results/
        documents      files of a text's documents, by text and split
        trained_bases  names of the base models that are trained here
        in_place       makes a path an input that is read where it is, also in a bucket
        text           makes a file of the user's an input
        """
        self.record_sets, self.files, self.trained = record_sets, documents, trained_bases
        self.in_place, self.text = in_place, text

    def own(self, records: str, wildcards: Any) -> list[str]:
        """Return the files that a shard's documents are in."""
        files = self.files[self.record_sets[records].collection, wildcards.split]
        return [files[number] for number in files_of_shard(int(wildcards.shard), int(wildcards.shards), len(files))]

    def documents(self, records: str, wildcards: Any) -> list:
        """Return the files that a shard's documents are in as inputs."""
        return [self.in_place(file) for file in self.own(records, wildcards)]

    def lengths(self, records: str, wildcards: Any) -> list:
        """Return the lengths of the documents in those files as inputs."""
        return [self.in_place(lengths_file(file)) for file in self.own(records, wildcards)]

    def elsewhere(self, records: str, wildcards: Any) -> Any:
        """Return the file that was made elsewhere and becomes a shard as an input; nothing where there is none."""
        files = self.record_sets[records].made_elsewhere[wildcards.split]
        known = int(wildcards.shard) < int(wildcards.shards) == len(files)
        return self.text(files[int(wildcards.shard)]) if known else []

    def layout(self, records: str, wildcards: Any) -> dict:
        """Return what a shard's job takes of its set: also how many shards and files of documents there are."""
        found, split = self.record_sets[records], wildcards.split
        return found.layout | {"shards": found.shards[split], "files": len(self.files[found.collection, split])}

    def tokenizer(self, records: str) -> str:
        """Return the tokenizer of a set of records; a base model trained here has its vocabulary before its weights."""
        base = self.record_sets[records].base
        if base in self.trained:
            return f"results/base-training/{base}/vocabulary.spm"
        return ancient(f"results/base/{base}")  # a folder: the fingerprint tells whether it has changed

    def fingerprint(self, records: str) -> str | list[str]:
        """Return the fingerprint of the preset folder that has the tokenizer, where there is one."""
        base = self.record_sets[records].base
        return [] if base in self.trained else f"results/base/{base}.json"
