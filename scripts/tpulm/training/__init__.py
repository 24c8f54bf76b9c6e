"""Training: start-up, the compiled step, both trainers, checkpoints, snapshots, histories.

Enter at `segment`, then at `jax_trainer` with `train_step`, or at `tensorflow_trainer`.
"""
