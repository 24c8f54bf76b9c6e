"""The vocabulary of scripts and config, as plain data: no library of models is imported here.

Enter at `artifacts` (names of files), `recipes` (keys of runs) and `scores` (the form of all scores).
"""
