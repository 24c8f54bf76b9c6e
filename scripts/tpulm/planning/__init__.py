"""Plans: compile a training step with the TPU compiler and derive its memory, time and cost."""
