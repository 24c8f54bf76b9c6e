"""Texts: from the user's sources to disjoint splits of documents in Parquet files.

Enter at `sources` (parts of a text), `files` and `rows` (documents of a part), and `splits`.
"""
