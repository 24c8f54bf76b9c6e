"""Tokenizers: training a Unigram vocabulary, transformers tokenizer folders, the vocabularies of causal models."""
