"""How good a model is: bits per byte, minimal pairs, tasks, the harness; baselines and intervals."""
