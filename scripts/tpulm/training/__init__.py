"""Training: start-up, the compiled step, both trainers, checkpoints, snapshots, histories.

Enter at `segment`, then at `jax_trainer` with `train_step`, or at `tensorflow_trainer`.
Most modules import JAX or Keras, and need tpulm.training.runtime.start first.
"""
