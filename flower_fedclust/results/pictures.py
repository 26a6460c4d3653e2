"""Pictures of a result, from what the run has released, and the colors and groups of rows that pictures share.

A picture must not show more than the run has released. Sizes and centers come with the error of
their noise, a cluster that noise alone could have produced is hollow, and rows are drawn only where
no noise was meant to protect them.

Functions that draw raise a ValueError if matplotlib is not installed.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence, Sized
from colorsys import hls_to_rgb
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine.rounds import DEVIATIONS
from flower_fedclust.models import CellModel, TableModel
from flower_fedclust.numerics.metrics import cluster_sizes
from flower_fedclust.results.result_data import ResultData
from flower_fedclust.tables.description import SHAPES, Clusters
from flower_fedclust.tables.estimates import Estimate, shares_of_counts
from flower_fedclust.tables.floors import PERSONS, ROWS, Floor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

#: The most features in the heat map of a profile: columns, or categories of columns.
MOST_LINES = 24
_LONGEST_NAME = 28
#: With more clusters than this, only some have their number at an axis.
_MOST_NUMBERS = 40
#: The most points of a map that are drawn one by one; more are drawn as a density.
DENSE = 100_000
#: What the title of a picture says about the space in which the points of the clusters lie.
_SPACES = {
    "rows": "",
    "map": " on the map",
    "embedding": " in the embedding",
    "codes": " among the codes",
}
# The inside of a cluster that could be noise: it is outlined, not filled.
_HOLLOW = "#ffffff"


# Figures and files.


def figure_of(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, which notebooks can show."""
    # Not pyplot, which would choose a backend for the whole process and keep every figure.
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "Pictures need matplotlib; install the extra, pip install 'flower-fedclust[maps]'."
        ) from None

    class Picture(Figure):
        def _repr_png_(self) -> bytes:  # notebooks call it
            self.savefig(content := io.BytesIO(), format="png")
            return content.getvalue()

    return Picture(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def saved_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as a PNG, and return its absolute path."""
    file = made_folder_of(path)
    figure.savefig(file, format="png")
    return file


def made_folder_of(path: str | Path) -> Path:
    """Create the folder of a file, and return the absolute path of the file."""
    file = Path(path).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


# The clusters of a result.


def cluster_figure(result: ResultData) -> Figure:
    """Draw where the clusters lie, how large they are, and what distinguishes each of them.

    The plane holds the first two principal components of the released centers, or the map. The area
    of a disc shows the size of its cluster. The ring around a center, and the error bar of a size,
    show two standard deviations of their noise. A cluster that noise alone could have produced is
    hollow. On a map, rows are drawn if the run has no noise that would protect them. Otherwise the
    points from which the map was made are drawn: landmarks, or noisy rows.
    """
    model, centers = result.model, result.model.cluster_points
    shares, errors = shares_and_errors(result, model.n_clusters)
    is_noise = shares <= DEVIATIONS * errors
    colors = [
        _HOLLOW if noise else color
        for noise, color in zip(is_noise, group_colors(len(shares)), strict=True)
    ]
    profile = profile_of(result, shares, errors)
    panels = [
        *(["plane"] if centers is not None else []),
        "sizes",
        *(["profile"] if profile is not None else []),
    ]
    height = max(4.2, 1.2 + 0.24 * max(len(shares), 0 if profile is None else len(profile.names)))
    figure = figure_of(5.2 * len(panels), min(height, 12.0))
    for axes, name in zip(np.ravel(figure.subplots(1, len(panels))), panels, strict=True):
        if name == "plane" and centers is not None:
            of_rows = model.model if isinstance(model, TableModel) else model
            if isinstance(of_rows, CellModel):
                _draw_regions(axes, of_rows)
                continue
            if model.space == "map":
                _draw_map(axes, result)
            _draw_plane(
                axes, centers, shares, moved_by_noise(result, len(shares)), colors, model.space
            )
        elif name == "sizes":
            _draw_sizes(axes, shares, errors, colors, counted_in(result, len(shares)))
            if (
                result.clusters is None
                and not has_sizes(result, model.n_clusters)
                and result.privacy.releases
            ):
                axes.set_xlabel("% of the rows, counted from labels, which no guarantee covers")
        elif profile is not None:
            _draw_profile(figure, axes, profile)
    figure.suptitle(
        f"{result.strategy}: {len(shares)} clusters",
        x=0.01,
        ha="left",
        weight="bold",
        parse_math=False,
    )
    return figure


def shares_and_errors(result: ResultData, n_clusters: int) -> tuple[Floats, Floats]:
    """Return the share of each cluster, and the standard deviation of its noise; equal shares if nothing is known.

    If the floor hides a share, only its upper limit is known: value and error stand for the
    interval from 0 to the limit.
    """
    sizes = sizes_of(result, n_clusters)
    if sizes is None:
        return np.full(n_clusters, 1 / n_clusters), np.zeros(n_clusters)
    return sizes.value, sizes.error


def sizes_of(result: ResultData, n_clusters: int) -> Estimate | None:
    """Return the share of each cluster as it may be printed, or None if nothing is known.

    The shares come from the first of these sources that exists: the description, the released
    sizes, the labels.
    """
    if result.clusters is not None:
        return result.clusters.sizes
    if result.sizes is not None and has_sizes(result, n_clusters):
        of_rows = result.privacy.unit != "client"
        floor = Floor(result.floor if of_rows else 0, of_rows=of_rows)
        return shares_of_counts(floor, result.sizes.counts, result.sizes.deviation)
    if result.labels_of_clients:
        return shares_of_counts(
            Floor(result.floor), cluster_sizes(result.labels_of_clients, n_clusters), 0.0
        )
    return None


def counted_in(result: ResultData, n_clusters: int) -> str:
    """Return whether the sizes of :func:`sizes_of` count "rows" or "persons"."""
    if result.clusters is not None:
        return result.clusters.counted
    are_persons = result.privacy.unit == "subject" and has_sizes(result, n_clusters)
    return PERSONS if are_persons else ROWS


def has_sizes(result: ResultData, n_clusters: int) -> bool:
    """Tell whether the run has released a size for each cluster."""
    return result.sizes is not None and len(result.sizes.counts) == n_clusters


def moved_by_noise(result: ResultData, n_clusters: int) -> Floats:
    """Return the standard deviation with which noise moves each center; 0 if it is unknown."""
    if result.sizes is None or not has_sizes(result, n_clusters):
        return np.zeros(n_clusters)
    counts = result.sizes.counts
    return np.divide(result.sizes.sum_deviation, counts, out=np.zeros(n_clusters), where=counts > 0)


@dataclass(frozen=True)
class Profile:
    """How clusters differ: a heat map."""

    names: Sequence[str]  #: Names of columns, or of categories of columns.
    values: Floats  #: A row for each cluster, a column for each name; NaN if noise hides it.
    unit: str


def profile_of(result: ResultData, shares: Floats, errors: Floats) -> Profile | None:
    """Return how clusters differ in the features that differ most; None if there are none, or if noise hides all."""
    if result.clusters is not None:
        profile = _described_profile(result.clusters)
    else:
        model, could_be_noise = result.model, shares <= DEVIATIONS * errors
        if (
            model.cluster_points is None
            or model.space != "rows"
            or np.count_nonzero(~could_be_noise) <= 1
        ):
            return None
        profile = _profile_of_centers(
            result, model.cluster_points, np.where(could_be_noise, 0.0, shares)
        )
    largest = np.abs(np.nan_to_num(profile.values)).max(axis=0)
    is_seen = np.count_nonzero(~np.isnan(profile.values), axis=0) > 0
    order = np.argsort(-largest, kind="stable")
    kept = np.sort(order[is_seen[order]][:MOST_LINES])
    if not len(kept):
        return None
    return Profile([profile.names[index] for index in kept], profile.values[:, kept], profile.unit)


def _described_profile(clusters: Clusters) -> Profile:
    """Return the profile that a description in the table's units gives."""
    frame = clusters.frame
    frame = frame[(frame["column"] != "") & ~frame["what"].isin(SHAPES)]
    named = frame.assign(
        name=frame["column"] + np.where(frame["what"] == "mean", "", ": " + frame["what"])
    )
    named["effect"] = named["effect"].where(
        named["effect"].abs() > DEVIATIONS * named["effect_error"]
    )
    table = named.pivot(index="name", columns="cluster", values="effect")
    return Profile(
        list(table.index), table.to_numpy().T, "difference from the rest, in standard deviations"
    )


def _profile_of_centers(result: ResultData, centers: Floats, shares: Floats) -> Profile:
    """Return the profile that the centers give: how far each lies from their mean, in standard deviations."""
    weights = shares / max(float(shares.sum()), np.finfo(float).tiny)
    values = centers - weights @ centers
    spread = np.sqrt(weights @ values**2)
    # Only the columns in which the centers differ most are kept.
    order = np.argsort(-spread, kind="stable")[:MOST_LINES]
    kept = np.sort(order)
    values = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0)
    values[shares == 0] = np.nan
    names = [
        str(column) for column in getattr(result.model, "columns_", None) or range(centers.shape[1])
    ]
    if isinstance(result.model, TableModel):
        names = result.model.preparation.names
    unit = "difference from the mean, in standard deviations of the centers"
    return Profile([names[index] for index in kept], values[:, kept], unit)


#: What stands between two words of a name: long names are cut after it.
_BREAK = re.compile(r"[\s_:.,/-]+")


def shortened(names: Sequence[str], longest: int = _LONGEST_NAME) -> list[str]:
    """Shorten names to ``longest`` characters, so that what distinguishes them stays.

    A name is cut in the part that it shares with another name. Names that would become equal are
    not shortened.
    """
    shortened_names = []
    for name in names:
        if len(name) <= longest:
            shortened_names.append(name)
            continue
        shared = max((_n_shared(name, other) for other in names if other != name), default=0)
        starts = [match.end() for match in _BREAK.finditer(name) if match.end() <= shared]
        tail = name[starts[-1] :] if starts else ""
        n_head = longest - 1 - len(tail)
        if tail and n_head < longest // 4:  # the rest of the name is too long as well
            n_head = longest // 4
            tail = f"{tail[: longest - n_head - 2]}…"
        shortened_names.append(f"{name[:n_head]}…{tail}" if tail else f"{name[: longest - 1]}…")
    is_alone = {short: shortened_names.count(short) == 1 for short in shortened_names}
    return [
        short if is_alone[short] else name
        for short, name in zip(shortened_names, names, strict=True)
    ]


def _n_shared(first_name: str, other: str) -> int:
    """Return how many characters two names share at their beginning."""
    return next(
        (at for at, (a, b) in enumerate(zip(first_name, other, strict=False)) if a != b),
        min(len(first_name), len(other)),
    )


def _draw_map(axes: Axes, result: ResultData) -> None:
    """Draw the points of a map behind its centers; as a density if there are many.

    The points are rows if the run has no noise to protect them. Otherwise they are the points from
    which the map was made. The label of the axis says which.
    """
    from matplotlib.colors import ListedColormap
    from scipy.spatial.distance import cdist

    are_rows = bool(result.embedding) and not result.privacy.releases
    model: Any = result.model.model if isinstance(result.model, TableModel) else result.model
    points = np.concatenate(result.embedding) if are_rows else model.coordinates_
    if len(points) >= DENSE:
        grays = ListedColormap(
            [f"#{level:02x}{level:02x}{level:02x}" for level in range(235, 115, -8)]
        )
        axes.hexbin(
            points[:, 0], points[:, 1], gridsize=90, bins="log", mincnt=1, cmap=grays, linewidths=0
        )
    else:
        nearest = cdist(points, model.map_centers_).argmin(axis=1)
        size = float(np.clip(6000 / len(points), 0.5, 12))
        colors = np.array(group_colors(len(model.map_centers_)))[nearest]
        axes.scatter(points[:, 0], points[:, 1], s=size, c=colors, alpha=0.8, linewidths=0)
    of_rows = "rows, by what they sent with noise" if model.stays_with_server else "landmarks"
    subject = "rows" if are_rows else of_rows
    axes.set_xlabel(
        f"{'shading' if len(points) >= DENSE else 'points'}: {len(points):,} {subject}", fontsize=8
    )


def _draw_regions(axes: Axes, model: CellModel) -> None:
    """Draw the cells of a grid in the color of their cluster, darker where they are denser.

    If the grid has three directions, the densest cell along the third one is shown.
    """
    from matplotlib.colors import to_rgb

    shape = (*model.labels_.shape, 1, 1)[:3]
    density = model.density_.reshape(shape)
    densest = density.argmax(axis=2)[:, :, None]
    labels = np.take_along_axis(model.labels_.reshape(shape), densest, 2)[:, :, 0]
    density = density.max(axis=2)
    colors = np.array([to_rgb(color) for color in [*group_colors(model.n_clusters), "#888888"]])
    shade = (0.15 + 0.85 * np.sqrt(density / max(float(density.max()), 1e-12))) * (
        density > 0
    ) + 0.15 * (density <= 0)
    image = 1.0 - shade[:, :, None] * (1.0 - colors[labels])
    low = model.grid_.low + (0.0 if model.directions_.size else model.origin_)
    ends = np.stack([low, low + model.grid_.width * np.array(model.grid_.shape)], axis=1)
    second = ends[1] if len(ends) > 1 else np.array([0.0, model.grid_.width])
    axes.imshow(
        image.swapaxes(0, 1),
        origin="lower",
        extent=(*ends[0], *second),
        aspect="auto",
        interpolation="nearest",
    )
    named = "direction" if model.directions_.size else "column"
    columns = list(model.columns_ or [f"{named} {index}" for index in range(3)])
    axes.set(
        xlabel=columns[0] if named == "column" else f"{named} 0",
        title="the regions of the clusters",
    )
    if len(ends) > 1:
        axes.set_ylabel(columns[1] if named == "column" else f"{named} 1")


def places_in_plane(centers: Floats, shares: Floats, space: str) -> Floats:
    """Return places of the centers in the plane: on the map, or projected on their first two principal components.

    For the principal components, each center is weighted by the size of its cluster.
    """
    weights = shares / max(float(shares.sum()), np.finfo(float).tiny)
    offsets = centers - weights @ centers
    _, _, directions = np.linalg.svd(
        np.sqrt(np.maximum(weights, 1e-12))[:, None] * offsets, full_matrices=False
    )
    places = centers if space == "map" else offsets @ directions[:2].T
    return np.asarray(
        np.column_stack([places, np.zeros((len(places), max(2 - places.shape[1], 0)))])
    )


def _draw_plane(
    axes: Axes, centers: Floats, shares: Floats, moved: Floats, colors: list[str], space: str
) -> None:
    """Draw the centers as discs, with their numbers and the rings of their noise.

    The area of a disc is in proportion to its cluster, and a ring has a radius of two standard
    deviations of the noise.
    """
    from matplotlib.patches import Circle

    places = places_in_plane(centers, shares, space)
    alpha = 0.3 if space == "map" else 0.75
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=30 + 4000 * shares,
        c=colors,
        alpha=alpha,
        edgecolors=_edges(colors),
        linewidths=1,
    )
    size = 9 if len(places) <= _MOST_NUMBERS else 5
    for index, (place, noise) in enumerate(zip(places, moved, strict=True)):
        if noise > 0:
            around = {"fill": False, "linestyle": ":", "edgecolor": "#555555", "linewidth": 0.8}
            axes.add_patch(Circle(tuple(place), DEVIATIONS * noise, **around))
        axes.annotate(
            str(index), tuple(place), ha="center", va="center", fontsize=size, weight="bold"
        )
    if space != "map":
        reach = max(float(np.ptp(places, axis=0).max()), 1e-12)
        middle = (places.max(axis=0) + places.min(axis=0)) / 2
        axes.set_xlim(middle[0] - 0.75 * reach, middle[0] + 0.75 * reach)
        axes.set_ylim(middle[1] - 0.75 * reach, middle[1] + 0.75 * reach)
    axes.set_aspect("equal", adjustable="datalim" if space == "map" else "box")
    axes.set(xticks=[], yticks=[], title=f"where the centers lie{_SPACES[space]}")


def _edges(colors: list[str]) -> list[str]:
    """Return the colors of outlines: gray for hollow clusters."""
    return ["#777777" if color == _HOLLOW else color for color in colors]


def _numbered(clusters: Sized, most: int = _MOST_NUMBERS) -> slice:
    """Return which clusters have their number at an axis: all, or every second, every third, and so on."""
    return slice(None, None, -(-len(clusters) // most))


def _draw_sizes(
    axes: Axes, shares: Floats, errors: Floats, colors: list[str], counted: str
) -> None:
    """Draw the shares of the clusters as bars, with the errors of their noise."""
    at = np.arange(len(shares))
    bars = 100 * DEVIATIONS * errors if errors.any() else None
    thin = {"elinewidth": 0.9, "capsize": 2}
    axes.barh(
        at,
        100 * shares,
        xerr=bars,
        color=colors,
        edgecolor=_edges(colors),
        height=0.7,
        error_kw=thin,
    )
    axes.set_yticks(at[_numbered(at)])
    axes.invert_yaxis()
    axes.set_xlim(0, min(axes.get_xlim()[1], 100))  # error bars may extend beyond 0 and 100
    axes.set(xlabel=f"% of the {counted}", ylabel="cluster", title="how large they are")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_profile(figure: Figure, axes: Axes, profile: Profile) -> None:
    """Draw a profile as a heat map."""
    import matplotlib

    values = profile.values

    scale: Any = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#e4e4e4")
    limit = max(float(np.nanmax(np.abs(np.nan_to_num(values)))), 1e-12)
    picture = axes.imshow(
        np.ma.masked_invalid(values.T), cmap=scale, vmin=-limit, vmax=limit, aspect="auto"
    )
    axes.set_xticks(range(len(values))[_numbered(values, _MOST_NUMBERS // 2)])
    axes.set_yticks(range(len(profile.names)))
    axes.set_yticklabels(shortened(profile.names))
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8)
    axes.set(xlabel="cluster", title="what distinguishes them")
    bar = figure.colorbar(picture, ax=axes, location="bottom", shrink=0.8, pad=0.02, aspect=40)
    bar.set_label(
        profile.unit + ("; gray: too few, or noise" if np.isnan(values).any() else ""), fontsize=8
    )


# Colors and groups of rows.

#: Ten colors that people with color blindness can distinguish: Petroff 2021, "Accessible Color Sequences for Data
#: Visualization". The fourth and the ninth color replace his grays, because gray means noise here.
TEN_COLORS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#f06ba8", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#004d40", "#92dadd"),
)
#: The color of rows without a class.
NO_COLOR = "#c8c8c8"


def group_colors(n_groups: int) -> list[str]:
    """Return a color ("#rrggbb") for each group: ``TEN_COLORS``, and further hues if there are more groups."""
    colors = list(TEN_COLORS[:n_groups])
    for index in range(len(colors), n_groups):
        # Steps by the golden ratio put each hue far from all hues before it.
        channels = hls_to_rgb(index * 0.618034 % 1.0, (0.35, 0.5, 0.65)[index % 3], 0.6)
        colors.append("#" + "".join(f"{round(255 * channel):02x}" for channel in channels))
    return colors


@dataclass(frozen=True)
class Grouping:
    """One way to color the rows.

    It holds the group of each row (its client, class or cluster), and the name and color of each
    group.
    """

    name: str
    groups: list[str]
    colors: list[str]
    codes: NDArray[np.intp]


def groupings_of(
    places: Sequence[NDArray[np.float64]],
    names: Sequence[str],
    labels: Sequence[ArrayLike | None] | None,
    columns: Mapping[str, Sequence[ArrayLike | None]],
) -> list[Grouping]:
    """Return the ways to color rows: by client, by class if classes are known, and by each column.

    Every sequence has one entry for each client; only the lengths of ``places`` matter.
    """
    sizes = [len(part) for part in places]
    clients = Grouping(
        "client",
        [str(name) for name in names],
        group_colors(len(names)),
        np.repeat(np.arange(len(names)), sizes),
    )
    named = ({} if labels is None else {"class": labels}) | dict(columns)
    return [clients, *(_grouping(name, values, sizes) for name, values in named.items())]


def _grouping(name: str, values: Sequence[ArrayLike | None], sizes: Sequence[int]) -> Grouping:
    """Return the rows grouped by a value; rows without one form the last group."""
    texts: list[str | None] = []
    for part, size in zip(values, sizes, strict=True):
        known = (
            np.full(size, None)
            if part is None or len(np.asarray(part)) != size
            else np.asarray(part)
        )
        texts += [_text(value) for value in known.tolist()]
    groups: list[str] = sorted({text for text in texts if text is not None}, key=natural_order)
    colors = group_colors(len(groups))
    number: dict[str | None, int] = {
        **{text: index for index, text in enumerate(groups)},
        None: len(groups),
    }
    if None in texts:
        groups.append(f"(no {name})")
        colors.append(NO_COLOR)
    return Grouping(name, groups, colors, np.array([number[text] for text in texts], dtype=np.intp))


def _text(value: Any) -> str | None:
    """Return a value as text.

    1.0 becomes "1", because one client's file may hold 1 where another one's holds 1.0.
    """
    if value is None or value != value:
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def natural_order(text: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a key by which "site 10" is sorted after "site 9"."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", text)
    return [
        (not piece.isdecimal(), int(piece) if piece.isdecimal() else 0, piece) for piece in pieces
    ], text


def base64_text(array: NDArray[Any], dtype: str) -> str:
    """Return an array as base64 text for a page, after conversion to ``dtype``."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()
