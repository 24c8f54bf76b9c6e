"""Count the predicted tokens of the training split, for the baseline without context.

input.records  manifest.json of the records, next to its shards; a URL, if they are in a bucket
output         NumPy array, int64 [vocab_size]: count of each predicted id; of a long split, in about 10 million tokens,
               evenly spread
"""

import numpy as np
from tpulm.core.files import atomic_write
from tpulm.core.job import job

with job(snakemake.log[0], f"{snakemake.wildcards.records} tokens") as say:
    from tpulm.records.causal_batches import arrays, predicted_ids
    from tpulm.records.reader import open_records
    from tpulm.records.token_counts import count_tokens, maskable_ids

    records = open_records(snakemake.input.records, "train")
    causal = records.manifest["tokens_per_record"] > records.sequence_length
    counts = count_tokens(records, (lambda *arguments: predicted_ids(arrays(*arguments))) if causal else maskable_ids)
    with atomic_write(snakemake.output[0]) as partial, open(partial, "wb") as file:
        np.save(file, counts)
    say(f"{counts.sum():,} tokens of the training split, {(counts > 0).sum():,} different ones")
