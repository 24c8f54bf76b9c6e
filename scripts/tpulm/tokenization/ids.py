"""Token ids of several texts in one array."""

import numpy as np

# Ids of texts: those of one after another, int32 [tokens]; and the number of each text's, int64 [texts].
Ids = tuple[np.ndarray, np.ndarray]


def flat(encodings: list) -> Ids:
    """Return the ids of encodings of the `tokenizers` library."""
    parts = [np.array(encoding.ids, np.int32) for encoding in encodings]
    return np.concatenate(parts or [np.empty(0, np.int32)]), np.array([len(part) for part in parts], np.int64)


def interleaved(where: np.ndarray, ones: Ids, others: Ids) -> Ids:
    """Return the ids of texts in their order: `ones` are those where `where`, bool of shape [texts], is true."""
    lengths = np.empty(len(where), np.int64)
    lengths[where], lengths[~where] = ones[1], others[1]
    source = np.repeat(where, lengths)
    ids = np.empty(len(source), np.int32)
    ids[source], ids[~source] = ones[0], others[0]
    return ids, lengths
