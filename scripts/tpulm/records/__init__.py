"""Records of token ids: TFRecord files, packing, the order in which training reads them, masking, batches.

Enter at `shards` (written) and at `reader` with `masked_batches` or `causal_batches` (read).
"""
