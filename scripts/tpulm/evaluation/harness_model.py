"""Causal models of keras-hub on JAX for lm-evaluation-harness. Needs tpulm.training.runtime.start first."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
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
from tpulm.models.sharding import Sharded, batch_sharding
from tpulm.records.causal_batches import causal_lm

TOKENS = 4096  # of a batch: enough to keep a device busy, and of any model few enough for its memory
SHORTEST = 16  # of the lengths that batches are padded to
MOST_GENERATED = 256  # tokens, where a task does not say: as in the harness's own models
Scored = tuple[float, bool]


def padded_length(length: int, longest: int) -> int:
    """Return the length that rows of `length` tokens are padded to: 2^n or 3/2 of it, so that few are compiled."""
    size = SHORTEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return max(length, min(size, longest))


def batches_by_length(lengths: Sequence[int], longest: int, replicas: int) -> Iterator[tuple[list[int], int]]:
    """Yield which rows are a batch, and its length.

    lengths   tokens of each row; longest  of the lengths to pad to
    replicas  the number of rows of a full batch is a multiple of it
    """
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(lengths):
        by_length[padded_length(length, longest)].append(row)
    for length, rows in sorted(by_length.items(), reverse=True):  # the largest first: what does not fit, fails at once
        size = max(1, TOKENS // length)
        size = -(-size // replicas) * replicas
        for start in range(0, len(rows), size):
            yield rows[start : start + size], length


def scored_row(number: int, ids: Sequence[int], predicted: int) -> Row:
    """Return ids as the row of a text, of which the last ones are predicted."""
    loss_mask = (np.arange(len(ids)) >= len(ids) - predicted).astype(np.int32)
    return Row(number, {"tokens": np.array(ids, np.int32), "mask": loss_mask >= 0, "loss_mask": loss_mask})


class KerasLM(TemplateLM):
    """A causal model as the harness asks it: likelihoods of continuations and texts, generation.

    Rows, windows and special tokens are those of the harness's own class for transformers, so that scores are, too.
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

        fast        its tokenizer, which puts <bos> before a text where the model knows one
        special     ids, int: bos (None where there is none), eos, pad
        max_length  tokens that the model sees at once; of longer texts, the end
        seed        of the samples of tasks that sample
        name        what an error calls the model
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
        """Id of the token that comes before a text of which nothing else is known."""
        bos = self.special["bos"]
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """What the harness calls the tokenizer in the names of its caches, of which none is used."""
        return "tpulm"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text, behind <bos> unless `add_special_tokens` is False or the text begins with it."""
        bos = self.special["bos"]
        spelled = bos is not None and string.startswith(self.fast.id_to_token(bos))
        added = not spelled if add_special_tokens is None else add_special_tokens
        return self.fast.encode(string, add_special_tokens=added).ids

    def place(self, array: np.ndarray) -> jax.Array:
        """Return an array with its rows sharded over the devices."""
        return jax.device_put(array, batch_sharding(self.distribution))

    def score(self, rows: Sequence[tuple[Sequence[int], int]]) -> list[Scored]:
        """Return for each row the log-likelihood of its last tokens, in nats, and whether each is the likeliest one.

        rows  ids, and how many of the last ones are predicted. Raises UserError where a likelihood is no finite number
        """
        # The longest first: a batch that does not fit fails at once.
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number][0]))
        batches = batched((scored_row(number, *rows[number]) for number in order), *self.scorer.shapes)
        found: list[Scored] = [(0.0, False)] * len(rows)
        for batch, costs, likeliest in self.scorer.measured(batches):
            bad = int((~np.isfinite(costs) & (batch.texts >= 0)).sum())
            if bad:
                raise UserError(
                    f"{self.name} cannot be scored: its loss is nan or inf for {bad:,} of {len(costs):,} texts in a "
                    "batch; allowed: finite numbers. Its training has diverged, or its precision is too low: try a "
                    "lower learning_rate, or float32."
                )
            for number, cost, greedy in zip(batch.texts.tolist(), costs.tolist(), likeliest.tolist(), strict=True):
                if number >= 0:  # not of a row that fills up the batch
                    found[number] = (-cost, greedy)
        return found

    def _loglikelihood_tokens(self, requests: list[tuple], **kwargs: Any) -> list[Scored]:
        """Return for each request the log-likelihood of its continuation, in nats, and whether greedy search finds it.

        requests  (what was asked, ids of the context, ids of the continuation); contexts are cut off at the left

        Raises UserError where the model does not see a whole continuation, or a likelihood is no finite number.
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
        """Return the log-likelihood of each text in nats, longer ones in windows that predict each token once."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            (text,) = request.args
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            own = [(None, *make_disjoint_window(pair)) for pair in pairs]
            windows += own
            owners += [number] * len(own)
        scored = self._loglikelihood_tokens(windows)
        totals = np.zeros(len(requests))
        np.add.at(totals, owners, [likelihood for likelihood, _ in scored])
        return [float(total) for total in totals]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the generated continuation of each context, up to the first of the strings that end it."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[repr(request.args[1])].append(number)
        found = [""] * len(requests)
        for numbers in groups.values():
            asked = normalize_gen_kwargs(requests[numbers[0]].args[1], MOST_GENERATED)
            until = handle_stop_sequences(asked.pop("until"), eos=None)
            texts = self.generated([requests[number].args[0] for number in numbers], until, asked)
            for number, text in zip(numbers, texts, strict=True):
                found[number] = postprocess_generated_text(text, until, None)
        return found

    def generated(self, contexts: list[str], until: list[str], asked: dict) -> list[str]:
        """Return the continuations of contexts, of at most `max_gen_toks` tokens, not yet cut at `until`.

        asked  max_gen_toks, and how the next token is chosen: do_sample, temperature, top_k, top_p

        Raises UserError where the model does not see so many tokens at once, or a likelihood is no finite number.
        """
        new = asked["max_gen_toks"]
        if new >= self.max_length:
            raise UserError(
                f"evaluation.harness: a task generates {new} tokens, but the context of the model has "
                f"{self.max_length}; allowed: a larger max_length of the task, or a smaller max_gen_toks in its file."
            )
        encoded = [self.tok_encode(context)[-(self.max_length - new) :] for context in contexts]
        generate = self.generator(asked)
        stops = self.stop_ids(until)
        texts = [""] * len(contexts)
        lengths = [len(row) + new for row in encoded]
        for chosen, length in batches_by_length(lengths, self.max_length, self.distribution.num_model_replicas):
            size = len(chosen) + -len(chosen) % self.distribution.num_model_replicas
            tokens = np.full((size, length), self.special["pad"], np.int32)
            mask = np.zeros((size, length), bool)
            for place in range(size):  # rows that fill up the batch are its last one again
                row = encoded[chosen[min(place, len(chosen) - 1)]]
                tokens[place, : len(row)], mask[place, : len(row)] = row, True
            made = generate({"token_ids": self.place(tokens), "padding_mask": self.place(mask)}, stop_token_ids=stops)
            ids = np.asarray(made["token_ids"], np.int32)
            # A token that was chosen by nan looks like any other one.
            self.score([(ids[place, : lengths[number]].tolist(), new) for place, number in enumerate(chosen)])
            for place, number in enumerate(chosen):
                texts[number] = self.continuation(ids[place], len(encoded[number]), new, stops)
        return texts

    def generator(self, asked: dict) -> Callable:
        """Return the compiled function that continues rows of tokens as a task asks."""
        recipe = {"sampler": "greedy", "seed": self.seed, "temperature": asked.get("temperature") or 1.0}
        if asked["do_sample"] and asked.get("top_k"):
            recipe |= {"sampler": "top_k", "k": asked["top_k"]}
        elif asked["do_sample"]:
            recipe |= {"sampler": "top_p", "p": asked.get("top_p") or 1.0}
        self.model.compile(sampler=make_sampler(recipe))
        return self.model.make_generate_function()

    def stop_ids(self, until: list[str]) -> tuple[int, ...]:
        """Return the ids that end a row: <eos>, and strings of `until` that are a token of their own."""
        alone = (self.fast.encode(text, add_special_tokens=False).ids for text in until if text)
        return tuple(sorted({self.eot_token_id, *(ids[0] for ids in alone if len(ids) == 1)}))

    def continuation(self, ids: np.ndarray, start: int, new: int, stops: tuple[int, ...]) -> str:
        """Return the text of the tokens after the first `start` of a row, at most `new`, up to one that ends it."""
        own = ids[start : start + new].tolist()
        ends = next((place for place, token in enumerate(own) if token in stops), len(own))
        return self.fast.decode(own[:ends])
