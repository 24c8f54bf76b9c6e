"""What texts cost models that count: the baselines of a model, in its own vocabulary."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.evaluation.ngram_model import KneserNey, Unigram
from tpulm.evaluation.vocabularies import CausalVocabulary, MaskedVocabulary, unknown_nats

# Of training text that is counted, at most: each token takes some 500 bytes of memory.
TOKENS = 10_000_000
# About as many tokens as that, in vocabularies whose tokens are long.
CHARACTERS = 5 * TOKENS


def encoded_documents(
    vocabulary: MaskedVocabulary | CausalVocabulary, documents: Iterable[Sequence[str]]
) -> list[np.ndarray]:
    """Return the token ids of documents in batches, int32 [tokens] each, up to TOKENS of them in all."""
    found: list[np.ndarray] = []
    room = TOKENS
    for texts in documents:
        for ids in vocabulary.ids(texts):
            found.append(np.array(ids[:room], np.int32))
            room -= len(found[-1])
            if not room:
                return found
    return found


def write_costs(
    path: str | Path,
    vocabulary: MaskedVocabulary | CausalVocabulary,
    training: Sequence[np.ndarray],
    texts: Sequence[str],
) -> None:
    """Write what each text costs the models of training documents, as Parquet: text, unigram, kneser_ney (nats)."""
    encoded = vocabulary.encode(texts)
    ids, unknown = [one.ids for one in encoded], unknown_nats(encoded)
    models = {"unigram": Unigram, "kneser_ney": KneserNey}
    columns: dict[str, list] = {"text": list(texts)}
    for name, model in models.items():
        columns[name] = (model(training, vocabulary.size).nats(ids) + unknown).tolist()
    with atomic_write(path) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd")
