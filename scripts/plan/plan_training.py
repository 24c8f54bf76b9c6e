"""Compile the training step of a run, or of a model on a task, for a TPU slice, without a TPU; record what it needs.

input.manifest   tfrecords/manifest.json, where the tokenizer comes from elsewhere
input.init       config.json of the masked model that it starts from, where the config does not say its sizes; or none
input.task       JSON: the labels of the task; none for a run
output           JSON: planned; task, of a model on one; where it is not planned, reason. Else mesh, devices, replicated
                 (variables that could not be sharded as the layout map says, and why), attention (its implementation,
                 and why not a kernel), program_sha256 (of the step before it is compiled), memory (bytes per device),
                 cost (FLOPs, bytes across HBM, bytes sent by kind, what could not be counted; per device and step),
                 seconds (per step, of each roof), bound_by, lower_bound_seconds and estimated_seconds of a step,
                 estimate_error (how much longer a step may take, as a share); as estimated: tokens_per_second,
                 model_flops_utilisation, hours, cost_of_run; price_per_hour, advice;
                 alternatives, what each of them would make of a step
params.recipe    its recipe, without steps where a run on TensorFlow has no plan; of the stages before what it takes
                 to know the model, price_per_hour, and alternatives, whether to compile those too; host_device_count,
                 checkpoint_every and resources.hosts, by which the config would allow a change or not; of a model on a
                 task, chains, the number of those that train with the step
"""

import os

from tpulm.core.accelerators import topology
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.models.masked_models import init_recipe
from tpulm.specs.classification_heads import masked_model, outputs_of
from tpulm.training import runtime

recipe, wildcards = snakemake.params.recipe, snakemake.wildcards
*of_task, stage, run = wildcards.planned.split("/")
where = recipe["where"]

with job(snakemake.log[0], f"plan {wildcards.planned} {wildcards.topology}") as say:
    slice_ = topology(wildcards.topology)
    head = {"stage": stage, "run": run, **({"task": of_task[1]} if of_task else {})}
    head |= {"topology": slice_.name, "chips": slice_.chips, "recipe": recipe}
    if "steps" not in recipe:
        reason = "unplanned: of runs on TensorFlow, a RoBERTa trained from scratch has a plan, that of its step on JAX"
        write_json(snakemake.output[0], head | {"planned": False, "reason": reason})
        say(reason)
    else:
        if snakemake.input.manifest:
            manifest = read_json(snakemake.input.manifest)
            vocabulary = {"size": manifest["vocab_size"], "pad": manifest["special_ids"]["pad"]}
            recipe = recipe | {"vocabulary": vocabulary}
        if of_task:
            known = masked_model(read_json(snakemake.input.init[0])) if snakemake.input.init else {}
            labels = read_json(snakemake.input.task)["labels"]
            recipe = recipe | known | {"outputs": outputs_of(recipe["predict"], labels)}
        elif snakemake.input.init:
            recipe = recipe | init_recipe(snakemake.input.init[0], manifest, where)
        # The compiler is in libtpu; the machine that asks it is a CPU.
        os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "1"}
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        runtime.start(snakemake.threads, repeats=False)
        from tpulm.planning.abstract_run import Unreachable
        from tpulm.planning.plan import in_money, plan, shortage

        try:
            found = in_money(plan(stage, recipe, slice_, where), recipe)
        except Unreachable:
            raise
        except UserError as error:
            write_json(snakemake.output[0], head | {"planned": False, "reason": str(error)})
            say(str(error))
        else:
            what = f"{where} with {stage}/{run}" if of_task else where
            found["sentence"] = None if found["memory"]["fits"] else shortage(found, what, slice_.name)
            write_json(snakemake.output[0], head | {"planned": True} | found)
            say(
                found["sentence"]
                or f"fits, {found['estimated_seconds'] * 1e3:,.1f} ms a step estimated, at least "
                f"{found['lower_bound_seconds'] * 1e3:,.1f}, bound by {found['bound_by']}"
            )
