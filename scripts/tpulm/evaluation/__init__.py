"""Score models: bits per byte, pairs of sentences, tasks and the harness, with baselines and intervals.

Enter at `material`, the items, and at `text_scores`, `task_scores` and `harness`, which compute scores.
"""
