"""Models that a person types into, on the page of tools/demo.py.

Enter at `choice` (which models there are), then at `masked`, `causal` and `labels`, which answer.
"""
