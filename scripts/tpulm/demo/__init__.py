"""Open models for the page of tools/demo.py, where users type prompts.

Enter at `choice` (which models there are), then at `masked`, `causal` and `labels`, which answer.
"""
