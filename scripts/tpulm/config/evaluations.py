"""What every model is scored on, beside which baselines, and which checkpoint the scores select."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpulm.config.exported_models import Model
from tpulm.config.runs import BITS_PER_BYTE, LOSS, Run, by_stage, pick, runs_of
from tpulm.config.texts import has_responses
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import MADE_PAIRS, OF_RESPONSES, VALIDATION
from tpulm.specs.causal_families import vocabulary_of

# What a base model and a finetuned one take of their recipes to be scored.
BASE_KEYS = ("sequence_length", "batch_size", "microbatches", "precision", "mesh", "host_device_count")
TUNED_KEYS = ("sequence_length", "batch_size", "microbatches")
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

    @property
    def pairs(self) -> Mapping:
        """What the config says of pairs of sentences."""
        return self.config["evaluation"]["pairs"]

    @cached_property
    def models(self) -> dict[str, Run]:
        """The models that are scored, as STAGE/RUN."""
        stages = {"mlm": self.masked, "base": self.bases, "finetune": self.finetuned}
        runs = {f"{stage}/{name}": run for stage, named in stages.items() for name, run in named.items()}
        return {name: run for name, run in runs.items() if self.pair_files or self.documents_of(run)}

    @cached_property
    def pair_files(self) -> dict[str, str]:
        """The sets of pairs, by name."""
        made = {MADE_PAIRS: f"{FOLDER}/pairs/made.jsonl"} if self.pairs["made"] else {}
        return made | {name: f"{FOLDER}/pairs/sets/{name}.jsonl" for name in self.pairs["sets"]}

    @cached_property
    def text_files(self) -> dict[str, str]:
        """The documents that are drawn of each text, by its folder below results/."""
        if not self.sampling["documents"]:
            return {}
        return {name: f"{FOLDER}/texts/{name}.parquet" for name in self.collections}

    @property
    def sampling(self) -> dict:
        """How documents are drawn: as many as any model is scored on."""
        text = self.text
        return pick(text, "characters", "seed") | {"documents": max(text["documents"], text["masked_documents"])}

    def sampling_of(self, collection: str) -> dict:
        """Return how documents of a text are drawn, and whether responses are scored, given what is before each."""
        return self.sampling | ({"responses": True} if scores_responses(self.config, collection) else {})

    def documents_of(self, run: Run) -> int:
        """Return how many documents of each held-out split a model is scored on."""
        return self.text["masked_documents" if run.stage == "mlm" else "documents"]

    def collections_of(self, run: Run) -> list[str]:
        """Return the texts that a model is scored on: a base model also on the one for finetuning."""
        if run.stage == "finetune":
            return ["finetune-text", "corpus"]
        # Whichever base a run names: to name another one must not score both again.
        tuned = run.stage == "base" and "finetune-text" in self.collections
        return ["corpus", *(["finetune-text"] if tuned else [])]

    def scored_with(self, run: Run) -> list[str]:
        """Return the texts that a model is scored on; the pairs go with the corpus."""
        return self.collections_of(run) if self.documents_of(run) else ["corpus"]

    def pairs_of(self, collection: str) -> list[str]:
        """Return the names of the sets of pairs that go with a text: all with the corpus."""
        return list(self.pair_files) if collection == "corpus" else []

    def pair_files_of(self, collection: str) -> list[str]:
        """Return the files of these sets."""
        return [self.pair_files[name] for name in self.pairs_of(collection)]

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
        kept = {"responses": self.responses, "characters": self.text["characters"], "path": run.path}
        return kept | run.loading_params("sequence_length", "batch_size", "microbatches")

    def scored_on(self, models: Mapping[str, Model]) -> dict[str, Any]:
        """Return inputs of a rule that scores models, named by its wildcard `model`: on what, and beside what."""

        def of(files: Callable[[Run], list[str]]) -> Callable[[Any], list[str]]:
            return lambda wildcards: files(models[wildcards.model].run)

        return {
            "texts": of(self.texts_of),
            "pairs": list(self.pair_files.values()),
            "ngrams": of(self.ngrams_of),
            "overlaps": of(self.overlaps_of),
        }

    def texts_of(self, run: Run) -> list[str]:
        """Return the files of documents that a model is scored on."""
        return [self.text_files[name] for name in self.collections_of(run)] if self.documents_of(run) else []

    def ngrams_of(self, run: Run) -> list[str]:
        """Return the scores of n-gram models that stand beside those of a model: of each text, in its vocabulary."""
        return [f"{FOLDER}/ngrams/{name}/{self.vocabulary_of(run)}.parquet" for name in self.scored_with(run)]

    def overlaps_of(self, run: Run) -> list[str]:
        """Return what was found of the evaluation in the texts that a model was trained on here."""
        texts = [f"texts/{name}" for name in self.scored_with(run)]
        return [overlap(searched, name) for name in self.trained_on(run) for searched in texts]

    def trained_on(self, run: Run) -> list[str]:
        """Return the texts of this config that a model was trained on, its base model's among them."""
        if run.stage == "finetune":
            return ["finetune-text", *(["corpus"] if "model" in run.base else [])]
        return [] if "pretrained" in run.recipe or "preset" in run.recipe else ["corpus"]

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

    @property
    def presets(self) -> set[str]:
        """The preset folders of base models, which have the vocabulary of those that are fetched."""
        return {f"<results>/base/{name}/preset" for name in self.config["base"]}

    def scoring(self, model: Model) -> dict:
        """Return what the scores of a model take of the config."""
        run = model.run
        found = {
            "key": run.key,
            **model.named,
            "documents": self.documents_of(run),
            "texts": self.collections_of(run) if self.documents_of(run) else [],
            "pairs": list(self.pair_files),
            **({"selects": run.selected_by} if run.selected_by in self.pair_files else {}),
        }
        if run.stage == "mlm":
            here = run.name in self.measured
            return (
                found
                | run.evaluation_params
                | {"length": self.config["tfrecords"]["sequence_length"] if here else LENGTH}
            )
        if run.stage == "finetune":
            return found | run.loading_params(*TUNED_KEYS)
        kept = pick(run.recipe, *BASE_KEYS, *run.determinism_keys)
        return found | kept | {"cpu_threads": self.config["cpu_threads"]}


def check_pairs(sets: Mapping[str, Mapping]) -> None:
    """Check that sets of pairs have names of their own, and are pinned if they come from the hub. Raises UserError."""
    for name, recipe in sets.items():
        where = f"evaluation.pairs.sets.{name}"
        if name == MADE_PAIRS:
            raise UserError(f"{where} has the name of the pairs that are made from the corpus; allowed: another name.")
        if "dataset" in recipe and "revision" not in recipe and not os.path.isdir(recipe["dataset"]):
            raise UserError(
                f"{where}.revision is missing; a dataset on the hub must be pinned to a commit of 40 hexadecimal "
                "digits, so that it cannot change."
            )


def scores_responses(config: Mapping, collection: str) -> bool:
    """Return whether causal models are scored on the responses of a text alone, as they are trained on them."""
    text = config["corpus"] if collection == "corpus" else config["finetune"].get("text")
    return text is not None and has_responses(text)


def checkpoints_named(which: str, run: Run) -> list[int]:
    """Return the steps of a run's checkpoints that `which` names beside the best one: best, last or all."""
    ends = run.segment_ends
    return {"best": [], "last": ends[-1:], "all": ends}[which]


def selecting(run: Run) -> dict[str, str]:
    """Return what tells the score that a run's checkpoint is selected by: group, and on what it is measured."""
    if run.selected_by == BITS_PER_BYTE:
        text = "finetune-text" if run.stage == "finetune" else "corpus"
        ending = OF_RESPONSES if run.stage != "mlm" and scores_responses(run.config, text) else ""
        return {"group": "text", "on": f"{text} {VALIDATION}{ending}"}
    return {"group": "pairs", "on": run.selected_by}


def check_selection(config: Mapping) -> None:
    """Check that every checkpoint has the score that selects, and that the selected one is there. Raises UserError."""
    found = config["evaluation"]
    by, where = found["select_by"], "evaluation.select_by"
    if by == LOSS:
        return
    known = [LOSS, BITS_PER_BYTE, *found["pairs"]["sets"]]
    if by not in known:
        raise UserError(f"{where} is {by}; allowed: {', '.join(known)} (loss, or a score: of text, or a set of pairs).")
    if found["checkpoints"] != "all":
        raise UserError(
            f"{where} is {by}, and evaluation.checkpoints is {found['checkpoints']}; allowed: all, because the "
            "scores of all checkpoints are compared."
        )
    stages = by_stage(runs_of(config))
    evaluated = Evaluations(config, stages["mlm"], stages["mlm"], stages["base"], stages["finetune"], [])
    for run in runs_of(config):
        if run.recipe["keep_checkpoints"] != "all":
            raise UserError(
                f"{where} is {by}, and {run.key}.keep_checkpoints is {run.recipe['keep_checkpoints']}; allowed: "
                "all, because any checkpoint may be selected after the last one is scored."
            )
        if by == BITS_PER_BYTE and not evaluated.documents_of(run):
            key = "masked_documents" if run.stage == "mlm" else "documents"
            raise UserError(f"{where} is {by}, and evaluation.text.{key} is 0; allowed: 1 or more.")
