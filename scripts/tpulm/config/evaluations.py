"""What every model is scored on, and beside which baselines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpulm.config.exported_models import Model, opening
from tpulm.config.runs import Run
from tpulm.specs.causal_families import vocabulary_of
from tpulm.specs.recipes import pick
from tpulm.specs.texts import has_responses

# Beside what opens it, what a causal model takes of its recipe to be scored.
READING_KEYS = ("sequence_length", "batch_size", "microbatches")
# Tokens that a masked model reads at once where no records say how many it was trained with.
LENGTH = 128
FOLDER = "<results>/evaluation"


def overlap(searched: str, collection: str) -> str:
    """Return the file that says what of an evaluation is in a training text.

    searched    texts/COLLECTION, tasks/TASK or harness/TASK
    collection  the training text
    """
    return f"{FOLDER}/{searched}/overlap/{collection}.json"


@dataclass(frozen=True)
class Evaluations:
    """The scores of a config: their files, and what each is made of.

    config        all of it, completed
    masked        masked models, by name; measured  those of them whose tokenizer is that of the corpus
    bases         base models that are trained here; finetuned  finetuning runs
    collections   the texts, by folder below results/
    """

    config: Mapping
    masked: Mapping[str, Run]
    measured: Mapping[str, Run]
    bases: Mapping[str, Run]
    finetuned: Mapping[str, Run]
    collections: Sequence[str]

    @property
    def text(self) -> Mapping:
        """What the config says of the held-out text."""
        return self.config["evaluation"]["text"]

    @cached_property
    def models(self) -> dict[str, Run]:
        """The models that are scored, as STAGE/RUN."""
        runs = [*self.masked.values(), *self.bases.values(), *self.finetuned.values()]
        return {run.path: run for run in runs if self.pair_files or self.documents_of(run)}

    @cached_property
    def pair_files(self) -> list[str]:
        """The sets of pairs."""
        return [f"{FOLDER}/pairs/sets/{name}.jsonl" for name in self.config["evaluation"]["pairs"]["sets"]]

    @cached_property
    def text_files(self) -> dict[str, str]:
        """The documents that are drawn of each text, by its folder below results/."""
        drawn = self.text["documents"] or self.text["masked_documents"]
        return {name: f"{FOLDER}/texts/{name}.parquet" for name in self.collections} if drawn else {}

    def sampling_of(self, collection: str) -> dict:
        """Return how documents of a text are drawn: as many as any model is scored on.

        Also whether responses are scored, given what is before each.
        """
        text = self.text
        kept = pick(text, "characters", "seed") | {"documents": max(text["documents"], text["masked_documents"])}
        return kept | ({"responses": True} if scores_responses(self.config, collection) else {})

    def documents_of(self, run: Run) -> int:
        """Return how many documents of each held-out split a model is scored on."""
        return self.text["masked_documents" if run.stage == "mlm" else "documents"]

    def collections_of(self, run: Run) -> list[str]:
        """Return the texts that a model is scored on: a base model also on the one for finetuning."""
        if not self.documents_of(run):
            return []
        if run.stage == "finetune":
            return ["finetune-text", "corpus"]
        # Whichever base a run names: to name another one must not score both again.
        tuned = run.stage == "base" and "finetune-text" in self.collections
        return ["corpus", *(["finetune-text"] if tuned else [])]

    def scored_with(self, run: Run) -> list[str]:
        """Return the texts that a model is scored on; the pairs go with the corpus."""
        return self.collections_of(run) or ["corpus"]

    def pairs_of(self, collection: str) -> list[str]:
        """Return the files of the sets of pairs that go with a text: all with the corpus."""
        return self.pair_files if collection == "corpus" else []

    @cached_property
    def generating(self) -> dict[str, Run]:
        """The finetuning runs, by name, whose models generate the responses of held-out documents."""
        asked = self.responses and scores_responses(self.config, "finetune-text")
        return dict(self.finetuned) if asked else {}

    @property
    def responses(self) -> int:
        """How many responses are generated, at most."""
        return min(self.text["responses"], self.text["documents"])

    def generation(self, run: Run) -> dict:
        """Return what generating the responses of held-out documents takes of the config."""
        kept = {"responses": self.responses, "characters": self.text["characters"]}
        return kept | opening(Model(run)) | pick(run.recipe, *READING_KEYS)

    def scored_on(self, models: Mapping[str, Model]) -> dict[str, Any]:
        """Return inputs of a rule that scores models, named by its wildcard `model`: on what, and beside what."""

        def of(files: Callable[[Run], list[str]]) -> Callable[[Any], list[str]]:
            return lambda wildcards: files(models[wildcards.model].run)

        return {
            "texts": of(lambda run: [self.text_files[name] for name in self.collections_of(run)]),
            "pairs": self.pair_files,
            "ngrams": of(self.ngrams_of),
            "overlaps": of(lambda run: self.overlaps_of(run, *(f"texts/{name}" for name in self.scored_with(run)))),
        }

    def ngrams_of(self, run: Run) -> list[str]:
        """Return the scores of n-gram models that stand beside those of a model: of each text, in its vocabulary."""
        return [f"{FOLDER}/ngrams/{name}/{self.vocabulary_of(run)}.parquet" for name in self.scored_with(run)]

    def overlaps_of(self, run: Run, *searched: str) -> list[str]:
        """Return what of evaluations is in the texts that a model was trained on here, its base model's among them.

        searched  see `overlap`
        """
        if run.stage == "finetune":
            texts = ["finetune-text", *(["corpus"] if "model" in run.base else [])]
        else:
            texts = [] if "pretrained" in run.recipe or "preset" in run.recipe else ["corpus"]
        return [overlap(own, text) for text in texts for own in searched]

    def vocabulary_of(self, run: Run) -> str:
        """Return the name of a model's vocabulary: a key of `vocabularies`."""
        if run.stage == "mlm":
            return "tokenizer" if run.name in self.measured else f"mlm-{run.name}"
        return f"base-{run.name if run.stage == 'base' else run.recipe['base']}"

    @cached_property
    def vocabularies(self) -> dict[str, list[str]]:
        """The files of each vocabulary that a scored model has, the one that is read first."""
        return {self.vocabulary_of(run): self.vocabulary_files(run) for run in self.models.values()}

    def vocabulary_files(self, run: Run) -> list[str]:
        """Return the files of the vocabulary of a model: a tokenizer's, a base model's, or a preset's."""
        if run.stage == "mlm":
            folder = "<results>/tokenizer" if run.name in self.measured else f"<results>/mlm/{run.name}/model"
            return [f"{folder}/tokenizer.json", f"{folder}/special_tokens_map.json"]
        name = run.name if run.stage == "base" else run.recipe["base"]
        if name in self.bases:
            return [f"<results>/{vocabulary_of(name, self.config['base'][name])}"]
        return [f"<results>/base/{name}/preset", f"<results>/base/{name}/preset.json"]

    def scoring(self, model: Model) -> dict:
        """Return what the scores of a model take of the config."""
        run, documents = model.run, {"documents": self.documents_of(model.run)}
        if run.stage != "mlm":
            return documents | opening(model) | pick(run.recipe, *READING_KEYS)
        length = self.config["tfrecords"]["sequence_length"] if run.name in self.measured else LENGTH
        return documents | {"key": run.key, **model.named, **run.evaluation_params, "length": length}


def scores_responses(config: Mapping, collection: str) -> bool:
    """Return whether causal models are scored on the responses of a text alone, as they are trained on them."""
    text = config["corpus"] if collection == "corpus" else config["finetune"].get("text")
    return text is not None and has_responses(text)


def checkpoints_named(which: str, run: Run) -> list[int]:
    """Return the steps of a run's checkpoints that `which` names beside the best one: best, last or all."""
    ends = run.segment_ends
    return {"best": [], "last": ends[-1:], "all": ends}[which]
