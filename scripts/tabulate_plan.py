"""Tabulate the plans.

input.plans   results/plan/{planned}/{topology}.json
output        HTML
"""

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import page, section, table
from tpulm.report.plan_table import HEAD, name_of, notes_of, rows_of

MEMORY = ["run", "slice", "weights", "optimizer", "gradients", "arguments", "temporaries", "program", "total", "HBM"]
TIME = [
    "run", "slice", "mesh", "TFLOPs", "GB across HBM", "GB sent", "compute ms", "memory ms", "interconnect ms",
    "at least ms", "estimated ms",
]  # fmt: skip

with job(snakemake.log[0], "report"):
    plans = [read_json(path) for path in snakemake.input.plans]
    planned = [plan for plan in plans if plan["planned"]]
    name = lambda plan: [name_of(plan), plan["topology"]]  # noqa: E731
    memory = [
        [
            *name(plan),
            *(plan["memory"][key] / 1e9 if plan["memory"][key] is not None else None for key in (*MEMORY[2:-1], "hbm")),
        ]
        for plan in planned
    ]
    time = [
        [
            *name(plan),
            " × ".join(f"{axis} {size}" for axis, size in plan["mesh"].items()),
            plan["cost"]["flops"] / 1e12,
            plan["cost"]["bytes"] / 1e9,
            sum(plan["cost"]["collective_bytes"].values()) / 1e9,
            *(plan["seconds"][part] * 1e3 for part in ("compute", "memory", "interconnect")),
            plan["lower_bound_seconds"] * 1e3,
            plan["estimated_seconds"] * 1e3,
        ]
        for plan in planned
        if plan["estimated_seconds"]
    ]
    sentences = notes_of(snakemake.input.plans)
    content = section("Runs", " ".join(sentences), table(HEAD, rows_of(snakemake.input.plans), decimals=2))
    if memory:
        text = "GB of a device, as the compiler reports them; gradients are among its temporaries."
        content += section("Memory", text, table(MEMORY, memory, decimals=2))
    if time:
        text = (
            "Of a device, for one step: what it does, how long that takes at the chip's peaks (no run is faster than "
            "the longest of these), and how long the step is estimated to take."
        )
        content += section("Time", text, table(TIME, time, decimals=2))
    text = "Compiled by the TPU compiler for devices that were not there. Times leave out input, dispatch and Python."
    write_text(snakemake.output[0], page("Plan", text, content))
