"""Plan runs: compile a training step with the TPU compiler and derive its memory, time and cost.

Enter at `plan`; `cost_model` and `estimate` compute memory and time of a step.
"""
