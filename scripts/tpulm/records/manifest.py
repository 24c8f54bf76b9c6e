"""Manifests: what a set of records is, merged from the sidecars of its shards."""

from tpulm.core.errors import UserError


def merge(splits: dict[str, list[dict]], layout: dict) -> dict:
    """Return a manifest: of the sidecars of each split's shards, in order, and the layout of the records.

    layout  sequence_length, tokens_per_record, packing; where the responses count, responses

    Raises UserError where a split has no token of a response.
    """
    keys = ["documents", "records", "tokens", "dropped_tokens", "bytes"]
    # How many documents became records that were made elsewhere, nobody knows.
    keys = [key for key in keys if all(key in sidecar for sidecars in splits.values() for sidecar in sidecars)]
    if layout.get("responses"):
        keys += ["loss_tokens", "target_tokens", "records_without_loss"]
    vocabulary: dict = {}
    entries = {}
    for split, sidecars in splits.items():
        shards = [{key: value for key, value in sidecar.items() if key != "vocabulary"} for sidecar in sidecars]
        vocabulary = sidecars[0]["vocabulary"]
        sums = {key: sum(shard[key] for shard in shards) for key in keys}
        if not sums.get("loss_tokens", 1):
            raise UserError(
                f"no record of {split} has a token of a response: with sequence_length {layout['sequence_length']}, "
                "each ends before its document's response begins; allowed: so long a sequence that some do not."
            )
        entries[split] = {**sums, "shards": shards}
    return {**layout, **vocabulary, "splits": entries}
