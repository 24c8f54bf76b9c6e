"""Tabulate how a model's variables are sharded over the devices.

input    partitioning.json
output   HTML
"""

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import page, section, table

run = snakemake.wildcards.run

with job(snakemake.log[0], "report"):
    partitioning = read_json(snakemake.input[0])
    mesh, variables = partitioning["mesh"], partitioning["variables"]
    sharded = [v for v in variables if any(v["spec"])]
    held = sum(v["bytes_per_device"] for v in variables)
    rows = [
        [
            v["path"],
            " × ".join(map(str, v["shape"])),
            ", ".join(axis or "·" for axis in v["spec"]),
            v["bytes_per_device"],
            v["trainable"],
            v["note"],
        ]
        for v in variables
    ]
    shape = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
    text = (
        f"Mesh: {shape}. {len(sharded)} of {len(variables)} variables are cut along an axis of the mesh (· marks a "
        f"dimension that is not); each device holds {held:,} bytes of weights."
    )
    head = ["variable", "shape", "cut along", "bytes per device", "trainable", "note"]
    write_text(snakemake.output[0], page(f"Partitioning: {run}", text, section("Variables", "", table(head, rows))))
