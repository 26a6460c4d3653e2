"""Pictures of clusters, from what a run has released: with what is noise drawn as noise."""

from __future__ import annotations

from pathlib import Path

from flower_fedclust.lab.groupings import TEN_COLORS
from flower_fedclust.lab.pictures import figure_of, saved_figure
from flower_fedclust.numerics.validity import ClusterNumber


def number_figure(number: ClusterNumber, path: str | Path) -> Path:
    """Draw the silhouette by the number of clusters, beside that of one Gaussian, as a PNG.

    Returns
    -------
    Path
        The absolute path of the PNG.

    Raises
    ------
    ValueError
        If matplotlib is not installed.
    """
    figure = figure_of(7.0, 4.2)
    axes = figure.subplots()
    axes.plot(number.numbers, number.of_one_gaussian, color="#888888", linestyle="--")
    axes.plot(number.numbers, number.silhouette, color=TEN_COLORS[0], marker="o", markersize=4)
    index = list(number.numbers).index(number.chosen)
    if number.is_clear:
        axes.plot([number.chosen], [number.silhouette[index]], color=TEN_COLORS[1], marker="o", markersize=9)
    for name, values in (("these clusters", number.silhouette), ("one Gaussian", number.of_one_gaussian)):
        axes.annotate(name, (number.numbers[-1], values[-1]), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set(xlabel="clusters", ylabel="simplified silhouette", ylim=(0, 1))
    axes.set_xticks(list(number.numbers))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_title(number.sentence, fontsize=9, loc="left", wrap=True, parse_math=False)
    return saved_figure(figure, path)
