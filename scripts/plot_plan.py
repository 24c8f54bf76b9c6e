"""Plot the memory that each run and task needs per device of each TPU slice, against the memory of the device.

input.plans   results/plan/{planned}/{topology}.json
output        SVG
"""

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.plan_table import name_of

# What a bar is put together from, as the compiler reports it; one that does not fit is known as a whole only.
PARTS = {"weights, optimizer, batch": ["arguments"], "temporaries, program": ["temporaries", "program"]}

with job(snakemake.log[0], "report"):
    from tpulm.report.style import BLUE, GREY, ORANGE, plt, save

    plans = [plan for plan in map(read_json, snakemake.input.plans) if plan["planned"]]
    slices = list(dict.fromkeys(plan["topology"] for plan in plans))
    runs = list(dict.fromkeys(map(name_of, plans)))
    figure, axes = plt.subplots(
        1,
        max(1, len(slices)),
        figsize=(1.8 + 2.6 * max(1, len(slices)), 1.4 + 0.42 * len(runs)),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for axis, name in zip(axes[0], slices, strict=False):
        here = [plan for plan in plans if plan["topology"] == name]
        hbm = here[0]["memory"]["hbm"] / 2**30
        for plan in here:
            memory, place = plan["memory"], runs.index(name_of(plan))
            total = memory["total"] / 2**30
            inside = 0.75 < total / hbm < 1.2  # or it would lie on the line
            axis.annotate(
                f"{total:.1f}",
                (total, place),
                xytext=(-4 if inside else 4, 0),
                textcoords="offset points",
                ha="right" if inside else "left",
                va="center",
                fontsize=9,
                color="white" if inside else "black",
            )
            if memory["arguments"] is None:
                axis.barh(place, total, color=GREY, height=0.6)
                continue
            low = 0.0
            for parts, color in zip(PARTS.values(), (BLUE, ORANGE), strict=True):
                size = sum(memory[part] for part in parts) / 2**30
                axis.barh(place, size, left=low, color=color, height=0.6)
                low += size
        axis.axvline(hbm, color="#c0392b", linewidth=1.4)
        axis.text(hbm, -0.45, "HBM", color="#c0392b", ha="right", va="bottom", fontsize=9)
        axis.set_title(name)
        axis.set_xlabel("GiB on each device")
        axis.grid(axis="y", visible=False)
        axis.set_xlim(0, 1.12 * max(hbm, *(plan["memory"]["total"] / 2**30 for plan in here)))
    axes[0][0].set_yticks(range(len(runs)), runs)
    axes[0][0].set_ylim(len(runs) - 0.4, -0.9)
    colors = dict(zip(PARTS, (BLUE, ORANGE), strict=True))
    if any(plan["memory"]["arguments"] is None for plan in plans):
        colors["all together, does not fit"] = GREY
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    figure.legend(handles, colors, loc="outside lower center", ncols=3, fontsize=9)
    save(figure, snakemake.output[0])
