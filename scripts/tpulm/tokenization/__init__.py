"""Tokenizers: training a vocabulary, encoding, transformers tokenizer folders, the vocabularies of causal models.

Enter at `training` and `encoding` for masked models, and at `causal`.
"""
