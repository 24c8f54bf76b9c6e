"""The config, and what follows from it alone: runs, texts, sets of records, tasks, evaluations and publications.

Enter at `reading` (read, checked, completed) and at `outline`, which the rules read.
"""
