"""Support code for Snakemake itself; imports nothing heavy.

Checks at the start, where artifacts are, resources, code inputs, notes on what is stale, the budget, the
preflight check, Snakemake's summary.
"""
