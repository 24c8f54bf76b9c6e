"""Plot how evenly the records are spread over the shards.

input.manifest   tfrecords/manifest.json
output           SVG
"""

from tpulm.core.files import read_json
from tpulm.core.job import job

with job(snakemake.log[0], "shards"):
    from tpulm.report.style import BLUE, GREY, plt, save

    manifest = read_json(snakemake.input.manifest)
    splits = manifest["splits"]
    figure, axes = plt.subplots(
        1, len(splits), figsize=(9, 3.4), layout="constrained", squeeze=False,
        width_ratios=[max(2.0, len(split["shards"]) ** 0.5) for split in splits.values()],
    )  # fmt: skip
    for axis, (name, split) in zip(axes[0], splits.items(), strict=True):
        records = [shard["records"] for shard in split["shards"]]
        mean = sum(records) / len(records)
        axis.bar(range(len(records)), records, color=BLUE, width=0.8)
        axis.axhline(mean, color=GREY, linestyle="--", linewidth=1)
        spread = (max(records) - min(records)) / mean
        axis.set_title(f"{name}: {sum(records):,} records")
        note = f", largest and smallest differ by {spread:.1%}" if len(records) > 1 else ""
        axis.set_xlabel(f"shard of {len(records)}{note}", fontsize=9)
        axis.set_xticks(range(len(records)) if len(records) <= 12 else [])
        axis.grid(axis="x", visible=False)
    axes[0][0].set_ylabel(f"records of {manifest['sequence_length']} tokens")
    save(figure, snakemake.output[0])
