"""Plan the training step of a run, or of a model on a task, for a TPU slice: compile it without a TPU.

input.manifest   tfrecords/manifest.json, for an external tokenizer
input.init       config.json of the masked model that it starts from, if the config does not have its sizes; or none
input.task       JSON: labels of the task; none for a run
output           JSON: stage, run, task (if it is a model on one), topology, chips, recipe; planned (whether there is a
                 plan), and if not, reason. A plan has sentence (why it does not fit, or null); mesh, devices,
                 replicated (variables that are not sharded, and why), attention (implementation, and why not a kernel),
                 program_sha256 (of the lowered step), memory (bytes per device), cost (per device and step: FLOPs,
                 bytes across HBM, bytes sent by kind, uncounted), seconds (per step, at each peak), bound_by,
                 lower_bound_seconds, estimated_seconds, estimate_error (possible excess, as a share), basis (on which
                 measured steps the estimate rests); tokens_per_step, model_flops_per_step; from the estimate
                 tokens_per_second, model_flops_utilisation, hours, cost_of_run; price_per_hour, advice, alternatives
                 (memory and times of each change); of a run with phases, the phase that needs the most memory, the
                 hours of all, and phases (first, until, and the same of each)
params.recipe    recipe of the run, without steps for a run on TensorFlow that has no plan; keys of earlier stages that
                 define the model; price_per_hour; alternatives (whether to compile them); host_device_count,
                 checkpoint_every and resources.hosts, to check changes; chains (number of trainings on a task)
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
*task_path, stage, run = wildcards.planned.split("/")
where = recipe["where"]

with job(snakemake.log[0], f"plan {wildcards.planned} {wildcards.topology}") as say:
    slice_ = topology(wildcards.topology)
    head = {"stage": stage, "run": run, **({"task": task_path[1]} if task_path else {})}
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
        if task_path:
            model_sizes = masked_model(read_json(snakemake.input.init[0])) if snakemake.input.init else {}
            labels = read_json(snakemake.input.task)["labels"]
            recipe = recipe | model_sizes | {"outputs": outputs_of(recipe["predict"], labels)}
        elif snakemake.input.init:
            recipe = recipe | init_recipe(snakemake.input.init[0], manifest, where)
        # The compiler is in libtpu, and runs on a machine without a TPU.
        os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "1"}
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        runtime.start(snakemake.threads, repeats=False)
        from tpulm.planning.abstract_run import Unreachable
        from tpulm.planning.plan import plan, plan_phases, shortage, with_cost

        try:
            if "phases" in recipe:
                run_plan = plan_phases(stage, recipe, slice_, where)
            else:
                run_plan = with_cost(plan(stage, recipe, slice_, where), recipe)
        except Unreachable:
            raise
        except UserError as error:
            write_json(snakemake.output[0], head | {"planned": False, "reason": str(error)})
            say(str(error))
        else:
            subject = f"{where} with {stage}/{run}" if task_path else where
            run_plan["sentence"] = None if run_plan["memory"]["fits"] else shortage(run_plan, subject, slice_.name)
            write_json(snakemake.output[0], head | {"planned": True} | run_plan)
            say(
                run_plan["sentence"]
                or f"fits, {run_plan['estimated_seconds'] * 1e3:,.1f} ms a step estimated, at least "
                f"{run_plan['lower_bound_seconds'] * 1e3:,.1f}, bound by {run_plan['bound_by']}"
            )
