"""Support of the rules: checks, resources, paths, budget, terminal and trackers; imports nothing heavy.

Enter at `start`, the checks before the first job; `resources` and `paths` are called by rules.
"""
