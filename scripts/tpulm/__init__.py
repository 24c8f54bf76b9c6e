"""Language models on TPUs, from raw text: the code that the workflow's scripts share, in subpackages by domain.

ARCHITECTURE.md shows the rooms and what may import what.
"""
