"""Models, our own and those of keras-hub and transformers: building, loading, sharding, exporting and sampling.

Enter at `building` (the model of a run), `causal` (presets), and `loading` (exported masked models).
Most modules import JAX or Keras, and need tpulm.training.runtime.start first.
"""
