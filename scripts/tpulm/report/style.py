"""Style of the report's figures, and saving them with the same bytes every time."""

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from tpulm.core.files import atomic_write

BLUE, ORANGE, GREY = "#2f6fb0", "#d1701f", "#8a94a0"

plt.rcParams.update(
    {
        "svg.hashsalt": "figures",  # ids within the file; random without it
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e4e7eb",
        "axes.edgecolor": "#9aa5b1",
        "axes.labelcolor": "#52606d",
        "xtick.color": "#52606d",
        "ytick.color": "#52606d",
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "legend.frameon": False,
    }
)


def save(figure: plt.Figure, path: str) -> None:
    """Write a figure as SVG, without a date, whole or not at all."""
    with atomic_write(path) as partial:
        figure.savefig(partial, format="svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
