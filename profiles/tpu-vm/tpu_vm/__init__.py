"""Snakemake's jobs on Cloud TPU VMs.

Snakemake's cluster-generic executor calls `submit`, `status` and `cancel`. They only write and read the folder of a job
under .snakemake/tpu-vm/jobs; the work is done by the supervisor, a process that `submit` starts beside Snakemake:

- a job that asks for no TPU runs on this machine;
- the jobs of a run that ask for the same slice run one after another on one queued resource, which the supervisor
  creates, waits for, sets up, replaces when it is preempted, and deletes when it idles;
- when Snakemake ends, however it does, the supervisor ends what still runs, deletes all, and ends.

Each job runs under `work`, which ends it when its standard input ends: that of a job on a TPU VM is held, through ssh,
by the supervisor. So no job outlives the supervisor, and a supervisor that was killed leaves nothing but resources,
which the next one finds by their names and deletes before it runs anything.

commands    what Snakemake and the user call
settings    environment variables of the user's
state       the folder .snakemake/tpu-vm
jobs        what a job asks for, its folder, its process
supervisor  the process that runs the jobs: in `local` those of this machine, in `slices` those of TPU slices
gcloud      the calls of the Google Cloud CLI
worker      what runs on a TPU VM, in a Python with nothing installed but what the jobs need

All of it runs in Python 3.9 or later, with the standard library and tpulm.core.
"""
