"""Plans: compile a training step with the TPU compiler and derive its memory, time and cost.

Enter at `plan`; `estimate` and `cost_model` say how long a compiled step takes.
"""
