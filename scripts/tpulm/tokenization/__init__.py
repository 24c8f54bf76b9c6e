"""Tokenizers: training a vocabulary, encoding, transformers tokenizer folders, the vocabularies of causal models."""
