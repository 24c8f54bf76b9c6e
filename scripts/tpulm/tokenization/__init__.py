"""Tokenizers: train vocabularies, encode documents, and read and write tokenizer folders of transformers.

Enter at `training` and `encoding` for masked models, and at `causal`.
"""
