"""Which checkpoints are scored or asked, which are gone, and what thinning waits for."""

from collections.abc import Callable, Mapping
from functools import cached_property

from tpulm.config.artifacts import CHECKPOINT_FILES, THINNED
from tpulm.config.model import Model
from tpulm.config.runs import Run
from tpulm.config.selection import checkpoints_named
from tpulm.core import bucket
from tpulm.core.errors import UserError

# The file that is made of a checkpoint: its scores, below a folder for each evaluation; what it says.
SCORES = "results/evaluation/{above}{{chain}}/{{step:08d}}/scores.json"
SAMPLES = "results/samples/{chain}/{step:08d}.json"


class CheckpointFiles:
    """What is made of checkpoints, beside what is made of the models that runs end with: scores, or samples."""

    def __init__(
        self,
        key: str,
        which: str,
        chains: Mapping[str, Run],
        located: Callable[[str], str],
        above: str = "",
    ):
        """Take which checkpoints the config names (best, last or all), and the runs by folder below results/.

        key      of the config that names them; under prompts, they are asked, else scored
        located  returns where an artifact is, in the working folder or in a bucket
        above    below results/evaluation/, the folder of the scores of an evaluation of its own, such as harness/NAME/

        Raises UserError for a run that may stop early: of its checkpoints after that, only the best weights are there.
        """
        for run in chains.values() if which != "best" else []:
            if run.recipe["patience"]:
                raise UserError(
                    f"{key} is {which}, but {run.key} has patience, and checkpoints after an early "
                    "stop hold no weights of their own; allowed with it: best."
                )
        self.key, self.which, self.chains, self.located = key, which, chains, located
        scored = not key.startswith("prompts.")
        self.pattern, self.done = (SCORES.format(above=above), "scored") if scored else (SAMPLES, "asked")

    def asked(self, chain: str) -> list[int]:
        """Return the steps of a run whose checkpoints the config names, beside the best one."""
        return checkpoints_named(self.which, self.chains[chain])

    def file(self, chain: str, step: int) -> str:
        """Return what is made of a checkpoint."""
        return self.pattern.format(chain=chain, step=step)

    def exists(self, path: str) -> bool:
        """Return whether an artifact is there."""
        return bucket.exists(self.located(path))

    def let_go(self, chain: str, step: int) -> bool:
        """Return whether the weights of a checkpoint were deleted, and not by accident: then none are made for this."""
        folder = f"{self.chains[chain].folder}/checkpoints/{step:08d}"
        return self.exists(f"{folder}/{THINNED}") and not self.exists(f"{folder}/{CHECKPOINT_FILES['weights']}")

    def there(self, chain: str) -> list[int]:
        """Return the steps of a run that the config names, and whose weights are not let go."""
        return [step for step in self.asked(chain) if not self.let_go(chain, step)]

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every run's model as it was at those steps, by its path below results/.

        No rule makes what was made of other checkpoints, so that nothing trains again for it.
        """
        found = [Model(run, step) for chain, run in self.chains.items() for step in self.there(chain)]
        return {model.path: model for model in found}

    def files(self, chain: str) -> list[str]:
        """Return the files of a run's checkpoints, in order: those that can be made, and those that are there."""
        return [
            self.file(chain, step)
            for step in self.asked(chain)
            if not self.let_go(chain, step) or self.exists(self.file(chain, step))
        ]

    def before_thinning(self, chain: str, step: int) -> list[str]:
        """Return the files that a checkpoint waits for before its arrays are deleted."""
        file = self.file(chain, step)
        wanted = step in self.asked(chain) and not self.let_go(chain, step)
        return [file] if wanted or self.exists(file) else []

    def note(self, chain: str) -> str | None:
        """Return a sentence about the checkpoints of a run that nothing can be made of any more; None for none."""
        gone = [
            step for step in self.asked(chain) if self.let_go(chain, step) and not self.exists(self.file(chain, step))
        ]
        if not gone:
            return None
        run = self.chains[chain]
        return (
            f"{self.key} is {self.which}, but {run.key}.keep_checkpoints has let go the weights at "
            f"{'step' if len(gone) == 1 else 'steps'} {', '.join(map(str, gone))}, which are not {self.done}; to have "
            f"them, delete {run.folder}/checkpoints and train again."
        )
