"""Support of the rules: checks, resources, paths, budget, terminal and trackers; imports nothing heavy.

Enter at `start`, the checks before the first job; `resources`, `paths` and `code_inputs` are called by rules.
"""
