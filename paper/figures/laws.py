"""Figure: every law on every workload, cost over the clairvoyant bound. `python -m paper.figures.laws`"""

from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fluidq import plot
from paper.experiments import EXPERIMENTS
from paper.tables import LAWS, WORKLOADS, workloads

INPUTS = ("paper/measured/day.json, paper/measured/traces.json, paper/measured/tuning.json",)
TARGET = Path(__file__).with_suffix(".pdf")
MARKERS = {"day": "o", "azure": "s", "mooncake": "^", "servegen": "D"}
TUNED = "joint thresholds, tuned"


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    found = workloads()
    order = sorted(found["day"]["laws"], key=lambda law: -found["day"]["laws"][law]["cost"])
    tuned = {name: w["tuned"]["cost"] for name, w in found.items() if name != "day"}
    tuned["day"] = EXPERIMENTS["tuning"].values()["after"]["hard"]["cost"]
    with style.context(plot.STYLE):
        figure = Figure(figsize=(6.4, 4.3), layout="constrained")
        ax = figure.subplots()
        for k, (name, w) in enumerate(found.items()):
            costs = [w["laws"][law]["cost"] / w["bound"] if law in w["laws"] else float("nan") for law in order]
            costs.append(tuned[name] / w["bound"])
            ax.plot(costs, range(len(costs)), MARKERS[name], color=f"C{k}", ms=5, label=WORKLOADS[name], alpha=0.9)
        ax.set_yticks(range(len(order) + 1), [*(LAWS[law] for law in order), TUNED])
        ax.set_xscale("log")
        ax.set_xlim(0.95, None)
        ticks = [1, 1.5, 2, 3, 5, 10, 20, 50]
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(axis="both", zorder=0)
        ax.axhline(len(order) - 0.5, color="0.4", lw=0.8)
        ax.set_xlabel("hard cost over the clairvoyant bound of the workload")
        ax.legend(loc="upper center", bbox_to_anchor=(0.35, 1.1), ncols=4)
        return plot.save(figure, path)


if __name__ == "__main__":
    print(draw())
