"""Pictures of advice: how many clusters there are, and which epsilon is enough."""

from __future__ import annotations

from pathlib import Path

from flower_fedclust.harness.plan import NOTHING, Plan
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.results.pictures.figures import figure_of, saved_figure
from flower_fedclust.results.pictures.groupings import TEN_COLORS


def number_figure(number: ClusterNumber, path: str | Path) -> Path:
    """Draw the silhouette by the number of clusters, beside that of one Gaussian, as a PNG."""
    figure = figure_of(7.0, 4.2)
    axes = figure.subplots()
    curves = (("these clusters", number.silhouette, TEN_COLORS[0]), ("one Gaussian", number.of_one_gaussian, "#888888"))
    for name, values, color in curves:
        axes.plot(number.numbers, values, color=color, marker="o", markersize=4)
        axes.annotate(name, (number.numbers[-1], values[-1]), xytext=(6, 0), textcoords="offset points", va="center")
    index = list(number.numbers).index(number.chosen)
    if number.is_clear:
        axes.plot([number.chosen], [number.silhouette[index]], color=TEN_COLORS[2], marker="o", markersize=9)
    axes.set(xlabel="clusters", ylabel="simplified silhouette", ylim=(0, 1), xticks=list(number.numbers))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.margins(x=0.12)
    axes.set_title(number.sentence, fontsize=9, loc="left", wrap=True, parse_math=False)
    return saved_figure(figure, path)


def plan_figure(plan: Plan, path: str | Path) -> Path:
    """Draw what noise is expected to cost by epsilon, as a PNG."""
    from matplotlib.ticker import FuncFormatter

    figure = figure_of(7.0, 4.2)
    axes = figure.subplots()
    budgets = list(plan.excess)
    costs = [100 * max(plan.excess[one], NOTHING / 10) for one in budgets]
    # Most real rows are within a factor of two of those that were made up.
    axes.fill_between(budgets, [cost / 2 for cost in costs], [cost * 2 for cost in costs], color="#e4eef8", linewidth=0)
    axes.annotate(
        "within a factor of two",
        (budgets[0], 2 * costs[0]),
        xytext=(14, -4),
        textcoords="offset points",
        color="#3a6ea5",
    )
    axes.plot(budgets, costs, color=TEN_COLORS[0], marker="o", markersize=4)
    axes.axhspan(100 * NOTHING / 20, 100 * NOTHING, color="#eeeeee", zorder=0)
    axes.annotate("nothing", (budgets[0], 100 * NOTHING), xytext=(0, -10), textcoords="offset points", color="#555555")
    if plan.enough is not None:
        axes.axvline(plan.enough, color=TEN_COLORS[2], linewidth=1, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="cost above that without noise")
    axes.set_ylim(bottom=100 * NOTHING / 20)
    axes.set_xticks(budgets)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_title(plan.sentences[-1], fontsize=9, loc="left", wrap=True, parse_math=False)
    return saved_figure(figure, path)
