"""Adapt causal models of keras-hub on JAX to lm-evaluation-harness."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from tpulm.core.errors import UserError
from tpulm.evaluation.jax_scoring import Scorer
from tpulm.evaluation.rows import Row, batched
from tpulm.models.sampling import make_sampler
from tpulm.models.sharding import Sharded
from tpulm.records.causal_batches import causal_lm
from tpulm.training.device_batches import whole_batch_on_devices

TOKENS = 4096  # tokens of a batch: a device stays busy, and any model has enough memory
SHORTEST = 16  # shortest padded length of a batch
MOST_GENERATED = 256  # tokens by default, as in the harness's own models
Scored = tuple[float, bool]


def padded_length(length: int, longest: int) -> int:
    """Return the length that rows of `length` tokens are padded to: 2^n or 3/2 of it, to compile few shapes."""
    size = SHORTEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return max(length, min(size, longest))


def batches_by_length(lengths: Sequence[int], longest: int, replicas: int) -> Iterator[tuple[list[int], int]]:
    """Yield the row numbers of each batch and its padded length; `replicas` divides the rows of a full batch."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(lengths):
        by_length[padded_length(length, longest)].append(row)
    for length, rows in sorted(by_length.items(), reverse=True):  # the largest first, to fail early
        size = max(1, TOKENS // length)
        size = -(-size // replicas) * replicas
        for start in range(0, len(rows), size):
            yield rows[start : start + size], length


def scored_row(number: int, ids: Sequence[int], predicted: int) -> Row:
    """Return ids as row `number`, of which the last `predicted` ones are scored."""
    loss_mask = (np.arange(len(ids)) >= len(ids) - predicted).astype(np.int32)
    return Row(number, {"tokens": np.array(ids, np.int32), "mask": loss_mask >= 0, "loss_mask": loss_mask})


class KerasLM(TemplateLM):
    """A causal model with the interface of the harness: likelihoods of continuations and texts, generation.

    Rows, windows and special tokens equal those of the harness's class for transformers, for equal scores.
    """

    def __init__(
        self,
        model: keras.Model,
        distribution: Sharded,
        fast: Tokenizer,
        special: dict[str, Any],
        max_length: int,
        seed: int = 0,
        name: str = "the model",
    ):
        """Take a model and how it is sharded.

        fast        its tokenizer, which puts <bos> before a text if the model has one
        special     ids of bos (None without one), eos, pad
        max_length  tokens of the model's context; longer texts lose their beginning
        seed        for tasks that sample
        name        the model's name in errors
        """
        super().__init__()
        self.model, self.distribution, self.fast, self.special = model, distribution, fast, special
        self.max_length, self.seed, self.name = max_length, seed, name
        self.scorer = Scorer(model, distribution, causal_lm, TOKENS, max_length)

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a text."""
        return self.special["eos"]

    @property
    def prefix_token_id(self) -> int:
        """Id of the token before a text without context: <bos>, or <eos> without one."""
        bos = self.special["bos"]
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in the harness's caches, which are not used."""
        return "tpulm"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text, after <bos> unless `add_special_tokens` is False or the text begins with it."""
        bos = self.special["bos"]
        begins_with_bos = bos is not None and string.startswith(self.fast.id_to_token(bos))
        add = not begins_with_bos if add_special_tokens is None else add_special_tokens
        return self.fast.encode(string, add_special_tokens=add).ids

    def score(self, rows: Sequence[tuple[Sequence[int], int]]) -> list[Scored]:
        """Return the log-likelihood of the last tokens of each row in nats, and whether all of them are the likeliest.

        rows  ids, and how many of the last ones are scored. Raises UserError for a likelihood that is not finite
        """
        # The longest first, to fail early.
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number][0]))
        batches = batched((scored_row(number, *rows[number]) for number in order), *self.scorer.shapes)
        scores: list[Scored] = [(0.0, False)] * len(rows)
        for batch, costs, likeliest in self.scorer.measured(batches):
            bad = int((~np.isfinite(costs) & (batch.texts >= 0)).sum())
            if bad:
                raise UserError(
                    f"{self.name} cannot be scored: its loss is nan or inf for {bad:,} of {len(costs):,} texts in a "
                    "batch; allowed: finite numbers. Its training has diverged, or its precision is too low: try a "
                    "lower learning_rate, or float32."
                )
            for number, cost, greedy in zip(batch.texts.tolist(), costs.tolist(), likeliest.tolist(), strict=True):
                if number >= 0:  # others fill up the batch
                    scores[number] = (-cost, greedy)
        return scores

    def _loglikelihood_tokens(self, requests: list[tuple], **kwargs: Any) -> list[Scored]:
        """Return the log-likelihood of each continuation in nats, and whether greedy search finds it.

        requests  (texts, ids of the context, ids of the continuation); contexts are cut off at the left

        Raises UserError for a continuation longer than the model's context, or a likelihood that is not finite.
        """
        if any(len(request[2]) > self.max_length for request in requests):
            longest = max(len(request[2]) for request in requests)
            raise UserError(
                f"evaluation.harness: a continuation has {longest} tokens, but the context of the model has "
                f"{self.max_length}; allowed: a larger max_length of the task."
            )
        rows = [
            ([*context, *continuation][-(self.max_length + 1) :], len(continuation))
            for _, context, continuation in requests
        ]
        return self.score(rows)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text in nats; windows of a long text predict each token once."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            (text,) = request.args
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            text_windows = [(None, *make_disjoint_window(pair)) for pair in pairs]
            windows += text_windows
            owners += [number] * len(text_windows)
        scored = self._loglikelihood_tokens(windows)
        totals = np.zeros(len(requests))
        np.add.at(totals, owners, [likelihood for likelihood, _ in scored])
        return [float(total) for total in totals]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the generated continuation of each context, up to the first stop string."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[repr(request.args[1])].append(number)
        continuations = [""] * len(requests)
        for numbers in groups.values():
            options = normalize_gen_kwargs(requests[numbers[0]].args[1], MOST_GENERATED)
            until = handle_stop_sequences(options.pop("until"), eos=None)
            texts = self.generated([requests[number].args[0] for number in numbers], until, options)
            for number, text in zip(numbers, texts, strict=True):
                continuations[number] = postprocess_generated_text(text, until, None)
        return continuations

    def generated(self, contexts: list[str], until: list[str], options: dict) -> list[str]:
        """Return the continuations of contexts, at most max_gen_toks tokens each, not yet cut at `until`.

        options  max_gen_toks, and those of sampling: do_sample, temperature, top_k, top_p

        Raises UserError if the model's context is too short, or a likelihood is not finite.
        """
        new = options["max_gen_toks"]
        if new >= self.max_length:
            raise UserError(
                f"evaluation.harness: a task generates {new} tokens, but the context of the model has "
                f"{self.max_length}; allowed: a larger max_length of the task, or a smaller max_gen_toks in its file."
            )
        encoded = [self.tok_encode(context)[-(self.max_length - new) :] for context in contexts]
        generate = self.generator(options)
        stops = self.stop_ids(until)
        texts = [""] * len(contexts)
        lengths = [len(row) + new for row in encoded]
        for chosen, length in batches_by_length(lengths, self.max_length, self.distribution.num_model_replicas):
            size = len(chosen) + -len(chosen) % self.distribution.num_model_replicas
            tokens = np.full((size, length), self.special["pad"], np.int32)
            mask = np.zeros((size, length), bool)
            for place in range(size):  # the last row is repeated to fill up the batch
                row = encoded[chosen[min(place, len(chosen) - 1)]]
                tokens[place, : len(row)], mask[place, : len(row)] = row, True
            arrays = whole_batch_on_devices({"token_ids": tokens, "padding_mask": mask}, self.distribution)
            output = generate(arrays, stop_token_ids=stops)
            ids = np.asarray(output["token_ids"], np.int32)
            # Scoring finds nan, which the generated tokens do not show.
            self.score([(ids[place, : lengths[number]].tolist(), new) for place, number in enumerate(chosen)])
            for place, number in enumerate(chosen):
                texts[number] = self.continuation(ids[place], len(encoded[number]), new, stops)
        return texts

    def generator(self, options: dict) -> Callable:
        """Return the compiled function that continues rows of tokens with a task's sampler."""
        recipe = {"sampler": "greedy", "seed": self.seed, "temperature": options.get("temperature") or 1.0}
        if options["do_sample"] and options.get("top_k"):
            recipe |= {"sampler": "top_k", "k": options["top_k"]}
        elif options["do_sample"]:
            recipe |= {"sampler": "top_p", "p": options.get("top_p") or 1.0}
        self.model.compile(sampler=make_sampler(recipe))
        return self.model.make_generate_function()

    def stop_ids(self, until: list[str]) -> tuple[int, ...]:
        """Return the sorted ids that end a row: <eos>, and strings of `until` that are one token."""
        encoded = (self.fast.encode(text, add_special_tokens=False).ids for text in until if text)
        return tuple(sorted({self.eot_token_id, *(ids[0] for ids in encoded if len(ids) == 1)}))

    def continuation(self, ids: np.ndarray, start: int, new: int, stops: tuple[int, ...]) -> str:
        """Return the text of at most `new` tokens of a row from `start` on, up to one of `stops`."""
        generated_ids = ids[start : start + new].tolist()
        end = next((index for index, token in enumerate(generated_ids) if token in stops), len(generated_ids))
        return self.fast.decode(generated_ids[:end])
