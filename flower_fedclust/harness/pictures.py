"""Pictures of a map of rows, as a PNG and as an interactive page, and of the curves of a run.

Each function returns the absolute path of its file, and raises a ValueError if it needs matplotlib and has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.harness.page import page
from flower_fedclust.harness.results import plural
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.results.pictures import (
    NO_COLOR,
    TEN_COLORS,
    Grouping,
    base64_text,
    figure_of,
    groupings_of,
    made_folder_of,
    saved_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_LEGEND = 40
_LONGEST_NAME = 24


def map_figure(
    embedding: Sequence[ArrayLike],
    names: Sequence[str],
    labels: Sequence[ArrayLike | None] | None,
    path: str | Path,
    *,
    title: str = "",
    columns: Mapping[str, Sequence[ArrayLike | None]] | None = None,
) -> Path:
    """Draw a map of rows as a PNG: colored by columns that are given, by client, and by class if classes are known.

    There is an array of places, and one of labels and of each column or None, for each client. The rows are drawn in a
    random order, so that no client covers another. Up to 40 clients or classes are named in a legend; more clients are
    shown on a scale of colors. Classes are also named on the map.
    """
    places = _checked_places(embedding, names)
    given = columns or {}
    panels = sorted(groupings_of(places, names, labels, given), key=lambda one: one.name not in given)
    xy = np.concatenate(places)
    order = np.random.default_rng(0).permutation(len(xy))
    # An area in points²: few rows and many rows cover about the same part of the picture.
    size = float(np.clip(16_000 / len(xy), 1.0, 40.0))
    figure = figure_of(7.0 * len(panels), 6.5)
    for axes, grouping in zip(np.ravel(figure.subplots(1, len(panels))), panels, strict=True):
        colors = np.array(grouping.colors)[grouping.codes[order]]
        axes.scatter(*xy[order].T, s=size, c=colors, linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"by {grouping.name}", parse_math=False)
        _name_groups(figure, axes, grouping, xy)
    if title:
        figure.suptitle(title, parse_math=False)
    return saved_figure(figure, path)


def map_page(
    embedding: Sequence[ArrayLike],
    names: Sequence[str],
    labels: Sequence[ArrayLike | None] | None,
    path: str | Path,
    *,
    title: str = "",
    columns: Mapping[str, Sequence[ArrayLike | None]] | None = None,
) -> Path:
    """Write a map of rows, given as for :func:`map_figure`, as one interactive HTML file that needs no network.

    The file contains the place (in single precision), the client, the class and the columns of every row, so it must be
    protected as they are. A column cannot be called "client", "class" or "row".
    """
    places = _checked_places(embedding, names)
    groupings = groupings_of(places, names, labels, columns or {})
    xy = np.concatenate(places)
    content = {
        "places": base64_text(xy, "<f4"),
        # Rows are in the order of the clients, and each client's rows are numbered from its start.
        "starts": np.cumsum([0, *map(len, places)]).tolist(),
        "groupings": [
            {"name": one.name, "groups": one.groups, "colors": one.colors, "codes": base64_text(one.codes, "<u4")}
            for one in groupings
        ],
    }
    found = {grouping.name: len(grouping.groups) - grouping.colors.count(NO_COLOR) for grouping in groupings}
    sizes = ", ".join(plural(count, name) for name, count in found.items())
    summary = f"A map of {plural(len(xy), 'row')}: {sizes}."
    file = made_folder_of(path)
    file.write_text(page("map.html", title=title or "Map of rows", summary=summary, content=content), encoding="utf-8")
    return file


def curve_figure(history: Mapping[str, Sequence[float]], path: str | Path, *, title: str = "") -> Path:
    """Draw what a strategy recorded over its rounds (``Result.history``) as a PNG, one curve below another.

    A positive curve that spans a factor of more than 100 has a logarithmic scale. A value that is not finite is a gap.
    """
    curves = {name: _checked_curve(name, values) for name, values in history.items()}
    if not curves:
        raise ValueError("The history holds no curve; only some strategies record one over their rounds.")
    figure = figure_of(7.0, 0.8 + 2.8 * len(curves))
    panels = np.ravel(figure.subplots(len(curves), 1, sharex=True))
    for axes, (name, values) in zip(panels, curves.items(), strict=True):
        axes.plot(np.arange(1, len(values) + 1), values, color=TEN_COLORS[0], marker="o", markersize=3)
        finite = values[np.isfinite(values)]
        if len(finite) and finite.min() > 0 and finite.max() > 100 * finite.min():
            axes.set_yscale("log")
        axes.set_ylabel(_short(name), parse_math=False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[-1].set_xlabel("step")
    if title:
        figure.suptitle(title, parse_math=False)
    return saved_figure(figure, path)


def _checked_places(embedding: Sequence[ArrayLike], names: Sequence[str]) -> list[NDArray[np.float64]]:
    if len(embedding) != len(names):
        raise ValueError(f"There are {len(embedding)} maps and {len(names)} names; give one of each for each client.")
    places = []
    for name, part in zip(names, embedding, strict=True):
        # A client may have no rows in the map.
        if np.shape(part) == (0, 2):
            places.append(np.empty((0, 2)))
            continue
        array = checked_rows(part, owner=f"the map of client {name}")
        if array.shape[1] != 2:
            raise ValueError(f"The map of client {name} has shape {array.shape}; give two columns.")
        places.append(array)
    if not sum(map(len, places)):
        raise ValueError("The map has no rows; give at least one.")
    return places


def _checked_curve(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    try:
        curve = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"The curve {name!r} holds something that is not a number; give numbers.") from None
    if curve.ndim != 1 or not len(curve):
        raise ValueError(f"The curve {name!r} has shape {curve.shape}; give a list of at least one number.")
    return curve


def _name_groups(figure: Figure, axes: Axes, grouping: Grouping, xy: NDArray[np.float64]) -> None:
    """Name the colors: a scale for many clients, a legend otherwise, and the names of classes on the map."""
    from matplotlib import cm, colors, lines, patheffects

    is_client = grouping.name == "client"
    if len(grouping.groups) <= _LONGEST_LEGEND:
        marks = [lines.Line2D([], [], color=color, marker="o", linestyle="none") for color in grouping.colors]
        legend = axes.legend(
            marks,
            ["-"] * len(marks),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=5 if len(marks) <= 20 else 8,
            fontsize="small" if len(marks) <= 20 else "x-small",
            frameon=False,
            handletextpad=0.1,
            columnspacing=1.0,
        )
        for text, group in zip(legend.get_texts(), grouping.groups, strict=True):
            # Set afterwards: a legend leaves out a name that starts with "_" and reads "$" as mathematics.
            text.set_text(_short(group, _LONGEST_NAME if len(marks) <= 10 else 12))
            text.set_parse_math(False)
    elif is_client:
        steps = colors.BoundaryNorm(np.arange(len(grouping.groups) + 1) + 0.5, len(grouping.groups))
        scale = cm.ScalarMappable(steps, colors.ListedColormap(grouping.colors))
        bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.8, pad=0.02, aspect=40)
        bar.set_label(f"number of the client, of {len(grouping.groups)}")
        bar.set_ticks(np.unique(np.linspace(1, len(grouping.groups), 5).astype(int)).tolist())
        bar.minorticks_off()
    if not is_client:
        for code, group in enumerate(grouping.groups):
            if grouping.colors[code] == NO_COLOR:
                continue
            rows = xy[grouping.codes == code]
            # The row nearest the median: the median of a class in two parts may lie in neither.
            x, y = rows[np.argmin(((rows - np.median(rows, axis=0)) ** 2).sum(axis=1))]
            halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
            text = axes.text(x, y, _short(group, 12), ha="center", va="center", weight="bold", path_effects=halo)
            text.set_fontsize(10 if len(grouping.groups) <= 20 else 6.5)
            text.set_parse_math(False)


def _short(text: str, longest: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
