"""Survival curves of the clusters: as a figure, and as a picture on a page, in the colors of the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.results.pictures import figure_of, group_colors, saved_figure
from flower_fedclust.tables.survival import Survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

#: The most clusters whose curves have bands; with more, bands would hide each other.
MOST_BANDS = 6
#: The most times for which the numbers of rows at risk are written below the picture.
MOST_COLUMNS = 7
#: The size of the picture on a page, and its margins on the left, right, top and bottom, in its own units.
_SIZE, _MARGINS = (560.0, 320.0), (44.0, 24.0, 14.0, 44.0)


def survival_figure(survival: Survival, path: str | Path | None = None) -> Figure:
    """Draw the curve of each cluster with its simultaneous band, and the rows at risk below.

    Parameters
    ----------
    survival : Survival
    path : str or Path, optional
        A PNG to write.

    Returns
    -------
    matplotlib.figure.Figure
    """
    colors = group_colors(survival.n_clusters)
    height = 3.4 + 0.22 * survival.n_clusters
    figure = figure_of(7.2, height)
    above, below = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3.0, height - 3.2]}
    )
    for cluster, color in enumerate(colors):
        times, curve, low, high = survival.curve(cluster)
        if len(times) == 1:
            continue
        if survival.n_clusters <= MOST_BANDS:
            above.fill_between(times, 100 * low, 100 * high, color=color, alpha=0.16, linewidth=0)
        above.plot(times, 100 * curve, color=color, linewidth=1.8, label=f"cluster {cluster}")
    above.axhline(50, color="#888888", linewidth=0.8, linestyle=":")
    above.set(ylim=(0, 101), xlim=(0, survival.ends[-1]), ylabel="% without the event")
    above.legend(loc="lower left", fontsize=8, frameon=False, ncols=1 + survival.n_clusters // 6)
    for side in ("top", "right"):
        above.spines[side].set_visible(False)
    _write_rows_at_risk(below, survival, colors)
    title = "What became of the clusters: each band contains the whole curve with probability 95%"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=10)
    if path is not None:
        saved_figure(figure, path)
    return figure


def _write_rows_at_risk(axes: Axes, survival: Survival, colors: list[str]) -> None:
    """Write how many rows of each cluster are at risk, below the picture.

    The numbers form a table: a line for each cluster, beginning with a square in its color, and a
    column for each time that is marked at the axis. A number below the floor is shown as "<" and the floor.
    """
    places = columns_of(survival)
    times = np.append(0.0, survival.ends)[places]
    for cluster, color in enumerate(colors):
        for time, place in zip(times, places, strict=True):
            text = survival.at_risk_as_text(cluster, int(place))
            axes.text(time, cluster, text, color="#222222", fontsize=7.5, ha="center", va="center")
        axes.plot(
            [-0.05],
            [cluster],
            transform=axes.get_yaxis_transform(),
            color=color,
            marker="s",
            clip_on=False,
        )
    axes.set(ylim=(survival.n_clusters - 0.5, -0.5), yticks=[], xticks=times)
    axes.set_xticklabels([f"{time:g}" for time in times])
    unit = f"time in {survival.unit}" if survival.unit else "time"
    axes.set_xlabel(
        f"{unit}; above it the {survival.counted} at risk", fontsize=8, parse_math=False
    )
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def columns_of(survival: Survival) -> NDArray[np.intp]:
    """Return the indexes of the times for which rows at risk are written: 0, the last one, and some between."""
    times = np.append(0.0, survival.ends)
    n_columns = min(len(times), MOST_COLUMNS)
    wanted = np.linspace(0.0, survival.ends[-1], n_columns)
    distances = np.abs(times[None, :] - wanted[:, None])
    return np.unique(distances.argmin(axis=1))


def survival_on_page(survival: Survival) -> dict[str, Any]:
    """Return a page's section about survival, for the template: sentences, curves, bands, ticks and rows at risk.

    Curves and bands are texts with the points of SVG polygons, in the units of :data:`_SIZE`.
    """
    (width, height), (left, right, top, bottom) = _SIZE, _MARGINS
    longest = float(survival.ends[-1])

    def x_of(time: float) -> float:
        return left + (width - left - right) * time / longest

    def y_of(share: float) -> float:
        return top + (height - top - bottom) * (1.0 - share)

    def points(times: Floats, shares: Floats) -> str:
        return " ".join(
            f"{x_of(time):.1f},{y_of(share):.1f}" for time, share in zip(times, shares, strict=True)
        )

    curves = []
    for cluster, color in enumerate(group_colors(survival.n_clusters)):
        times, curve, low, high = survival.curve(cluster)
        has_band = survival.n_clusters <= MOST_BANDS and len(times) > 1
        band = f"{points(times, high)} {points(times[::-1], low[::-1])}" if has_band else ""
        rows = [survival.at_risk_as_text(cluster, int(place)) for place in columns_of(survival)]
        curves.append({"color": color, "line": points(times, curve), "band": band, "rows": rows})
    ticks = np.append(0.0, survival.ends)[columns_of(survival)].tolist()
    return {
        "size": _SIZE,
        "curves": curves,
        "times": [{"x": x_of(time), "text": f"{time:g}"} for time in ticks],
        "shares": [
            {"y": y_of(share), "text": f"{100 * share:.0f}%"}
            for share in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        "ends": {"left": left, "right": width - right, "bottom": y_of(0.0), "half": y_of(0.5)},
        "unit": survival.unit,
        "counted": survival.counted,
        "sentences": [survival.sentence(cluster) for cluster in range(survival.n_clusters)],
        "others": [
            survival.difference,
            *_means(survival),
            *survival.missing,
            survival.errors,
        ],
    }


def _means(survival: Survival) -> list[str]:
    """Return the sentence about mean times, in a list; [] if there is none."""
    return [f"Mean time without the event: {'; '.join(survival.means)}."] if survival.means else []
