"""Pictures of clusters, from what a run has released: with what is noise drawn as noise.

What draws a picture raises a ValueError where matplotlib is not installed.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.results.findings import Findings
from flower_fedclust.models.tables import TableModel
from flower_fedclust.results.pictures.figures import figure_of
from flower_fedclust.results.pictures.groupings import group_colors
from flower_fedclust.engine.rounds import DEVIATIONS
from flower_fedclust.tables.description import SHAPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

#: Lines of a profile at most: columns, or categories of them.
MOST_LINES = 24
_LONGEST_NAME = 28
#: Of more clusters not every one has its number at an axis.
_MOST_NUMBERS = 40
#: Where the points lie that stand for clusters.
_SPACES = {"rows": "", "map": " on the map", "embedding": " in the embedding", "codes": " among the codes"}
# The inside of what cannot be told from noise: it is outlined, and not filled.
_HOLLOW = "#ffffff"


def cluster_figure(result: Findings) -> Figure:
    """Draw the clusters of a result: where they lie, how large they are, and what sets each apart.

    The plane is that of the first two principal components of the centers, as they were released, or the map: no row is
    used. The discs are as large as the clusters; the ring around a center is two standard deviations of its noise, and
    a size has a bar of two standard deviations of its own. A cluster that cannot be told from noise is hollow.
    """
    model, centers = result.model, result.model.cluster_points
    shares, errors, moved = _sizes(result, model.n_clusters)
    is_noise = shares <= DEVIATIONS * errors
    colors = [_HOLLOW if noise else color for noise, color in zip(is_noise, group_colors(len(shares)), strict=True)]
    among_rows = centers if model.space == "rows" else None
    profile = _profile(result, among_rows, np.where(is_noise, 0.0, shares))
    panels = [*(["plane"] if centers is not None else []), "sizes", *(["profile"] if profile is not None else [])]
    height = max(4.2, 1.2 + 0.24 * max(len(shares), 0 if profile is None else len(profile[0])))
    figure = figure_of(5.2 * len(panels), min(height, 12.0))
    for axes, name in zip(np.ravel(figure.subplots(1, len(panels))), panels, strict=True):
        if name == "plane" and centers is not None:
            _draw_plane(axes, centers, shares, moved, colors, model.space)
        elif name == "sizes":
            _draw_sizes(axes, shares, errors, colors)
            if result.clusters is None and not _has_sizes(result, model.n_clusters) and result.privacy.releases:
                axes.set_xlabel("% of the rows: counted from labels, which no guarantee covers")
        elif profile is not None:
            _draw_profile(figure, axes, *profile)
    figure.suptitle(f"{result.strategy}: {len(shares)} clusters", parse_math=False)
    return figure


def _sizes(result: Findings, n_clusters: int) -> tuple[Floats, Floats, Floats]:
    """Return the share of each cluster, its error, and how far noise moves its center, as far as they are known."""
    nothing = np.zeros(n_clusters)
    if result.clusters is not None:
        sizes = result.clusters.frame.query("what == 'share of rows'")
        return sizes["value"].to_numpy(), sizes["error"].to_numpy(), _moved(result, n_clusters)
    if result.sizes is not None and _has_sizes(result, n_clusters):
        total = max(float(np.maximum(result.sizes.counts, 0.0).sum()), np.finfo(float).tiny)
        shares = np.maximum(result.sizes.counts, 0.0) / total
        return shares, np.full(n_clusters, result.sizes.deviation / total), _moved(result, n_clusters)
    if result.labels:
        counts = np.bincount(np.concatenate(result.labels), minlength=n_clusters)
        return counts / max(int(counts.sum()), 1), nothing, nothing
    return np.full(n_clusters, 1 / n_clusters), nothing, nothing


def _has_sizes(result: Findings, n_clusters: int) -> bool:
    """Tell whether the run has released a size for each cluster."""
    return result.sizes is not None and len(result.sizes.counts) == n_clusters


def _moved(result: Findings, n_clusters: int) -> Floats:
    if result.sizes is None or not _has_sizes(result, n_clusters):
        return np.zeros(n_clusters)
    counts = result.sizes.counts
    return np.divide(result.sizes.sum_deviation, counts, out=np.zeros(n_clusters), where=counts > 0)


def _profile(result: Findings, centers: Floats | None, shares: Floats) -> tuple[list[str], Floats, str] | None:
    """Return names, how each cluster differs in each (NaN where noise hides it), and what that is measured in."""
    if result.clusters is not None:
        frame = result.clusters.frame
        frame = frame[(frame["column"] != "") & ~frame["what"].isin(SHAPES)]
        told = frame.assign(name=frame["column"] + np.where(frame["what"] == "mean", "", ": " + frame["what"]))
        table = told.pivot(index="name", columns="cluster", values="effect")
        names, values = list(table.index), table.to_numpy().T
        unit = "difference to the rest, in standard deviations"
    elif centers is not None and np.count_nonzero(shares) > 1:
        weights = shares / max(float(shares.sum()), np.finfo(float).tiny)
        values = centers - weights @ centers
        spread = np.sqrt(weights @ values**2)
        values = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0)
        values[shares == 0] = np.nan
        # The columns in which the centers differ most come first.
        order = np.argsort(-spread, kind="stable")
        names = [str(column) for column in getattr(result.model, "columns_", None) or range(centers.shape[1])]
        if isinstance(result.model, TableModel):
            names = result.model.preparation.names
        kept = np.sort(order[:MOST_LINES])
        return [names[index] for index in kept], values[:, kept], "difference to the mean, in deviations of the centers"
    else:
        return None
    largest = np.nanmax(np.abs(np.nan_to_num(values)), axis=0)
    kept = np.sort(np.argsort(-largest, kind="stable")[:MOST_LINES])
    return [names[index] for index in kept], values[:, kept], unit


def _draw_plane(axes: Axes, centers: Floats, shares: Floats, moved: Floats, colors: list[str], space: str) -> None:
    from matplotlib.patches import Circle

    weights = shares / max(float(shares.sum()), np.finfo(float).tiny)
    offsets = centers - weights @ centers
    _, _, directions = np.linalg.svd(np.sqrt(np.maximum(weights, 1e-12))[:, None] * offsets, full_matrices=False)
    places = centers if space == "map" else offsets @ directions[:2].T
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros((len(places), 2 - places.shape[1]))])
    axes.scatter(
        places[:, 0], places[:, 1], s=30 + 4000 * shares, c=colors, alpha=0.75, edgecolors=_edges(colors), linewidths=1
    )
    size = 9 if len(places) <= _MOST_NUMBERS else 5
    for index, (place, noise) in enumerate(zip(places, moved, strict=True)):
        if noise > 0:
            around = {"fill": False, "linestyle": ":", "edgecolor": "#555555", "linewidth": 0.8}
            axes.add_patch(Circle(tuple(place), DEVIATIONS * noise, **around))
        axes.annotate(str(index), tuple(place), ha="center", va="center", fontsize=size, weight="bold")
    reach = max(float(np.ptp(places, axis=0).max()), 1e-12)
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    axes.set_xlim(middle[0] - 0.75 * reach, middle[0] + 0.75 * reach)
    axes.set_ylim(middle[1] - 0.75 * reach, middle[1] + 0.75 * reach)
    axes.set_aspect("equal", adjustable="box")
    axes.set(xticks=[], yticks=[], title=f"where the centers lie{_SPACES[space]}")


def _edges(colors: list[str]) -> list[str]:
    return ["#777777" if color == _HOLLOW else color for color in colors]


def _numbered(clusters: Sized, most: int = _MOST_NUMBERS) -> slice:
    """Return which clusters have their number at an axis: every one, or every second, and so on."""
    return slice(None, None, -(-len(clusters) // most))


def _draw_sizes(axes: Axes, shares: Floats, errors: Floats, colors: list[str]) -> None:
    at = np.arange(len(shares))
    bars = 100 * DEVIATIONS * errors if errors.any() else None
    thin = {"elinewidth": 0.9, "capsize": 2}
    axes.barh(at, 100 * shares, xerr=bars, color=colors, edgecolor=_edges(colors), height=0.7, error_kw=thin)
    axes.set_yticks(at[_numbered(at)])
    axes.invert_yaxis()
    axes.set_xlim(0, min(axes.get_xlim()[1], 100))  # noise reaches beyond what can be
    axes.set(xlabel="% of the rows", ylabel="cluster", title="how large they are")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_profile(figure: Figure, axes: Axes, names: list[str], values: Floats, unit: str) -> None:
    import matplotlib

    scale: Any = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#e4e4e4")
    limit = max(float(np.nanmax(np.abs(np.nan_to_num(values)))), 1e-12)
    picture = axes.imshow(np.ma.masked_invalid(values.T), cmap=scale, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(values))[_numbered(values, _MOST_NUMBERS // 2)])
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels([one if len(one) <= _LONGEST_NAME else f"{one[: _LONGEST_NAME - 1]}…" for one in names])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8)
    axes.set(xlabel="cluster", title="what sets them apart")
    bar = figure.colorbar(picture, ax=axes, location="bottom", shrink=0.8, pad=0.02, aspect=40)
    bar.set_label(unit + ("; grey: few, or noise" if np.isnan(values).any() else ""), fontsize=8)
