"""The config and what follows from it alone: every run, text, set of records, task, evaluation and publication.

Enter at `reading` (read, checked, completed) and at `outline`, which the rules read.
"""
