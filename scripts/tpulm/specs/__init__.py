"""Descriptions as plain data that scripts and config share, without imports of model libraries.

Enter at `artifacts` (names of files), `recipes` (keys of runs) and `scores` (the form of all scores).
"""
