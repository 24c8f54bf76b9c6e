"""The config and what follows from it alone.

Read, completed, checked; the description of each run, task, set of records and evaluation; sizes of models.
"""
