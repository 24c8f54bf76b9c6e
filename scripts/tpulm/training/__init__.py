"""Training: start-up, the compiled step, both trainers, checkpoints, histories."""
