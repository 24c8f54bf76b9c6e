"""Draw the memory that each run needs on a device of each TPU slice, against what there is.

input.plans   results/plan/{stage}/{run}/{topology}.json
output        SVG
"""

from lib.files import read_json
from lib.job import job

with job(snakemake.log[0], "report"):
    from lib.figures import BLUE, GREY, ORANGE, plt, save

    plans = [plan for plan in map(read_json, snakemake.input.plans) if plan["planned"]]
    slices = list(dict.fromkeys(plan["topology"] for plan in plans))
    figure, axes = plt.subplots(
        1, max(1, len(slices)), figsize=(max(4.5, 3.0 * len(slices)), 3.8), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], slices, strict=False):
        here = [plan for plan in plans if plan["topology"] == name]
        hbm = here[0]["memory"]["hbm"] / 2**30
        for place, plan in enumerate(here):
            memory = plan["memory"]
            total = memory["total"] / 2**30
            axis.text(place, total, f"{total:.2g}", ha="center", va="bottom", fontsize=9)
            if memory["arguments"] is None:
                axis.bar(place, total, color=GREY, width=0.6)
                continue
            low = 0.0
            for part, color in (("arguments", BLUE), ("temporaries", ORANGE)):
                axis.bar(place, memory[part] / 2**30, bottom=low, color=color, width=0.6)
                low += memory[part] / 2**30
        axis.axhline(hbm, color="#c0392b", linewidth=1.4)
        axis.text(len(here) - 0.5, hbm, "HBM", color="#c0392b", ha="right", va="bottom", fontsize=9)
        axis.set_title(name)
        axis.set_xticks(range(len(here)), [f"{plan['stage']}\n{plan['run']}" for plan in here], fontsize=9)
        axis.grid(axis="x", visible=False)
        axis.set_xlim(-0.6, len(here) - 0.4)
    axes[0][0].set_ylabel("GiB on each device")
    colors = {"weights, optimizer, batch": BLUE, "temporaries": ORANGE}
    if any(plan["memory"]["arguments"] is None for plan in plans):
        colors["all together, does not fit"] = GREY
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    figure.legend(handles, colors, loc="outside lower center", ncols=3, fontsize=9)
    save(figure, snakemake.output[0])
