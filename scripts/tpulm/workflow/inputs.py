"""Inputs that follow from the config: of jobs that write shards, and of those that open models and checkpoints.

Which checkpoints are scored, which are gone, and what pruning waits for.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from snakemake.io import ancient

from tpulm.config.evaluations import checkpoints_named
from tpulm.config.exported_models import Model
from tpulm.config.record_sets import RecordSet
from tpulm.config.runs import Run
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CHECKPOINT_FILES, PRUNED, lengths_file
from tpulm.specs.shards import files_of_shard


class ShardInputs:
    """Inputs and params of the jobs that write shards; each takes a set of records and the wildcards of its job."""

    def __init__(
        self,
        record_sets: Mapping[str, RecordSet],
        documents: Mapping[tuple[str, str], Sequence[str]],
        in_place: Callable[[str], Any],
        text: Callable[[str], Any],
    ):
        """Take what the config says.

        record_sets    sets of records by their folders below results/
        documents      files of a text's documents, by text and split
        in_place       makes a path an input that is read where it is, also in a bucket
        text           makes a file of the user's an input
        """
        self.record_sets, self.files = record_sets, documents
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
        found = self.record_sets[records]
        if found.vocabulary:
            return f"<results>/{found.vocabulary}"
        return ancient(f"<results>/base/{found.base}/preset")  # a folder: the fingerprint tells whether it has changed

    def fingerprint(self, records: str) -> str | list[str]:
        """Return the fingerprint of the preset folder that has the tokenizer, where there is one."""
        found = self.record_sets[records]
        return [] if found.vocabulary else f"<results>/base/{found.base}/preset.json"


class CheckpointFiles:
    """The scores of checkpoints, beside those of the models that runs end with."""

    def __init__(
        self,
        key: str,
        which: str,
        chains: Mapping[str, Run],
        located: Callable[[str], str],
        above: str = "",
    ):
        """Take which checkpoints the config names (best, last or all), and the runs by folder below results/.

        key      of the config that names them
        located  returns where an artifact is, in the working folder or in a bucket
        above    below results/evaluation/, the folder of the scores of an evaluation of its own, such as harness/NAME/

        Raises UserError for a run that may stop early: of its checkpoints after that, only the best weights are there.
        """
        for run in chains.values() if which != "best" else []:
            if run.recipe["patience"]:
                raise UserError(
                    f"{key} is {which}, but {run.key} has patience, and checkpoints after an early "
                    "stop have no weights of their own; allowed: best."
                )
        self.key, self.which, self.chains, self.located, self.above = key, which, chains, located, above

    def asked(self, chain: str) -> list[int]:
        """Return the steps of a run whose checkpoints the config names, beside the best one."""
        return checkpoints_named(self.which, self.chains[chain])

    def file(self, chain: str, step: int) -> str:
        """Return the scores of a checkpoint."""
        return f"<results>/evaluation/{self.above}{chain}/{step:08d}/scores.json"

    def exists(self, path: str) -> bool:
        """Return whether an artifact is there."""
        return bucket.exists(self.located(path))

    def let_go(self, chain: str, step: int) -> bool:
        """Return whether the weights of a checkpoint were deleted, and not by accident: then none are made for this."""
        folder = f"{self.chains[chain].folder}/checkpoints/{step:08d}"
        return self.exists(f"{folder}/{PRUNED}") and not self.exists(f"{folder}/{CHECKPOINT_FILES['weights']}")

    def there(self, chain: str) -> list[int]:
        """Return the steps of a run that the config names, and whose weights are not let go."""
        return [step for step in self.asked(chain) if not self.let_go(chain, step)]

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every run's model as it was at those steps, by its path below results/.

        No rule makes the scores of other checkpoints, so that nothing trains again for them.
        """
        found = [Model(run, step) for chain, run in self.chains.items() for step in self.there(chain)]
        return {model.path: model for model in found}

    def files(self, chain: str) -> list[str]:
        """Return the scores of a run's checkpoints, in order: those that can be made, and those that are there."""
        return [
            self.file(chain, step)
            for step in self.asked(chain)
            if not self.let_go(chain, step) or self.exists(self.file(chain, step))
        ]

    def before_pruning(self, chain: str, step: int) -> list[str]:
        """Return the scores that a checkpoint waits for before its arrays are deleted."""
        file = self.file(chain, step)
        wanted = step in self.asked(chain) and not self.let_go(chain, step)
        return [file] if wanted or self.exists(file) else []

    def note(self, chain: str) -> str | None:
        """Return a sentence about the checkpoints of a run that cannot be scored any more; None for none."""
        gone = [
            step for step in self.asked(chain) if self.let_go(chain, step) and not self.exists(self.file(chain, step))
        ]
        if not gone:
            return None
        run = self.chains[chain]
        return (
            f"{self.key} is {self.which}, but {run.key}.keep_checkpoints has deleted the weights at "
            f"{'step' if len(gone) == 1 else 'steps'} {', '.join(map(str, gone))}, which are not scored; to "
            f"restore them, delete {run.folder}/checkpoints and train again."
        )


def model_inputs(models: Mapping[str, Model]) -> dict[str, Callable[[Any], Any]]:
    """Return the inputs that open one of these models, by the wildcard `model`.

    The preset folder is `ancient`: its fingerprint tells of a change.
    """
    return {
        "base": lambda wildcards: ancient(models[wildcards.model].preset),
        "fingerprint": lambda wildcards: models[wildcards.model].fingerprint,
        "best": lambda wildcards: models[wildcards.model].tuned,
    }
