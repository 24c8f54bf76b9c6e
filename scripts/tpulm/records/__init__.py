"""Records of token ids: TFRecord files, packing, the order in which training reads them, masking, batches."""
