"""Records of token ids: TFRecord files, packing, the order in which training reads them, masking and batches.

Enter at `shards` to write, and at `reader` with `masked_batches` or `causal_batches` to read.
"""
