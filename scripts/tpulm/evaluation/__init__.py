"""How good a model is: bits per byte, pairs of sentences, tasks and the harness, with baselines and intervals.

Enter at `material` (what is scored) and at `text_scores`, `task_scores` and `harness`, which make scores of it.
"""
