"""Which share of its published peaks a TPU reaches in training, and how far an estimate may be off.

Three factors, the same for all chips, fitted by benchmarks/plan_table.py to training steps that others have measured
and published (benchmarks/measured_steps.yaml has the sources, benchmarks/results/plan_table.md the comparison). A test
fits them again.
"""

COMPUTE = 0.93  # of the peak of arithmetic, in multiplications of matrices
MEMORY = 0.55  # of the peak bandwidth of HBM
LINKS = 0.69  # of the peak bandwidth of the links between chips
FACTORS = (COMPUTE, MEMORY, LINKS)

# How much longer than its estimate a step may take: the largest excess among those rows, each estimated with factors
# that were fitted without it.
ERROR = 0.34
