"""What is kept: the archive of a workflow's results, how each file came to be, signatures, the history of runs."""
