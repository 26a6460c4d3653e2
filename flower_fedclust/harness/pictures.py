"""Maps of rows as a PNG, as an interactive page, and inside the page of a comparison.

A map gives each row a place in the plane. Rows can be colored by cluster, client or class; each of
these ways is called a grouping. A page holds the places and the groups as compact binary arrays in
base64, and its script draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.names import plural
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parsing, read_csv
from flower_fedclust.results.files import from_cell, read_result
from flower_fedclust.results.page import page_of
from flower_fedclust.results.pictures import (
    NO_COLOR,
    Grouping,
    base64_text,
    figure_of,
    groupings_of,
    made_folder_of,
    saved_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The most rows of a map that the page of a comparison holds.
MOST_ROWS = 5000
_LONGEST_LEGEND = 40
_LONGEST_NAME = 24


def map_figure(
    places: Sequence[NDArray[np.float64]],
    groupings: Sequence[Grouping],
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draw a map of rows, given by client, as a PNG with a panel for each grouping, and return its path.

    The rows are drawn in a random order, so that no client covers another. Up to 40 clients or
    classes are named in a legend. Classes are also named on the map.
    """
    xy = np.concatenate(places)
    order = np.random.default_rng(0).permutation(len(xy))
    # The area of a mark, in points²: fewer rows get larger marks, which cover about the same part of the picture.
    size = float(np.clip(16_000 / len(xy), 1.0, 40.0))
    figure = figure_of(7.0 * len(groupings), 6.5)
    for axes, grouping in zip(np.ravel(figure.subplots(1, len(groupings))), groupings, strict=True):
        colors = np.array(grouping.colors)[grouping.codes[order]]
        axes.scatter(*xy[order].T, s=size, c=colors, linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"by {grouping.name}", parse_math=False)
        _name_groups(axes, grouping, xy)
    if title:
        figure.suptitle(title, parse_math=False)
    return saved_figure(figure, path)


def map_page(
    places: Sequence[NDArray[np.float64]],
    groupings: Sequence[Grouping],
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Write a map of rows, given by client, as one interactive HTML file that needs no network, and return its path.

    The file contains the place of every row (in single precision) and its groups, so it must be as
    well protected as these.
    """
    xy = np.concatenate(places)
    content = {
        "places": base64_text(xy, "<f4"),
        # Rows come in the order of the clients; client i begins at starts[i].
        "starts": np.cumsum([0, *map(len, places)]).tolist(),
        "groupings": [_as_json(grouping, "<u4") for grouping in groupings],
    }
    page_content = {
        grouping.name: len(grouping.groups) - grouping.colors.count(NO_COLOR)
        for grouping in groupings
    }
    sizes = ", ".join(plural(count, name) for name, count in page_content.items())
    summary = f"A map of {plural(len(xy), 'row')}: {sizes}."
    file = made_folder_of(path)
    named = {"title": title or "Map of rows", "summary": summary}
    file.write_text(
        page_of("flower_fedclust.harness", "map.html", **named, content=content), encoding="utf-8"
    )
    return file


def map_of_trial(folder: Path, most_rows: int = MOST_ROWS) -> dict[str, Any] | None:
    """Return what the page of a comparison needs to draw the map in a trial's folder.

    If the map has more than ``most_rows`` rows, a random sample of that many is drawn. Returns None
    if the map cannot be read.
    """
    try:
        result = read_result(folder)
        known: dict[str, list[str | None]] = {}
        for row in (
            read_csv(folder / "classes.csv", "run again")
            if (folder / "classes.csv").is_file()
            else ()
        ):
            known.setdefault(from_cell(row["client"]), []).append(from_cell(row["class"]) or None)
        with parsing(str(folder), "a map", "run again"):
            places, names = result["embedding"], result["names"]
            clusters = result["labels_of_clients"]
            columns = {"cluster": clusters} if clusters else {}
            classes: list[Any] | None = [known.get(name) for name in names] if known else None
            groupings = groupings_of(places, names, classes, columns)
            xy, numbers = (
                np.concatenate(places),
                np.concatenate([np.arange(len(part)) for part in places]),
            )
            chosen = np.arange(len(xy))
            if len(xy) > most_rows:
                chosen = np.sort(np.random.default_rng(0).choice(len(xy), most_rows, replace=False))
            low = xy[chosen].min(axis=0)
            widest = float((xy[chosen].max(axis=0) - low).max()) or 1.0
    except DataError:
        return None
    return {
        "n_rows": len(xy),
        "n_shown": len(chosen),
        # Coordinates as whole numbers from 0 to 65,535 along the wider side, which is finer than any screen.
        "places": base64_text(np.rint((xy[chosen] - low) / widest * 65535), "<u2"),
        "numbers": base64_text(numbers[chosen], "<u4"),
        "groupings": [
            _as_json(
                Grouping(grouping.name, grouping.groups, grouping.colors, grouping.codes[chosen]),
                "<u2",
            )
            for grouping in groupings
        ],
    }


def _as_json(grouping: Grouping, dtype: str) -> dict[str, Any]:
    """Return a grouping as the page's script reads it, with the group of each row as integers of ``dtype``."""
    return {
        "name": grouping.name,
        "groups": grouping.groups,
        "colors": grouping.colors,
        "codes": base64_text(grouping.codes, dtype),
    }


def _name_groups(axes: Axes, grouping: Grouping, xy: NDArray[np.float64]) -> None:
    """Name the colors of up to 40 groups in a legend, and the classes on the map itself.

    A class is named at the row nearest to the median of its rows, because the median itself may lie
    between two separate groups of its rows.
    """
    from matplotlib import lines, patheffects

    if len(grouping.groups) <= _LONGEST_LEGEND:
        marks = [
            lines.Line2D([], [], color=color, marker="o", linestyle="none")
            for color in grouping.colors
        ]
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
            # The text is set only now: a legend would leave out a name that starts with "_", and read "$" as
            # mathematics.
            text.set_text(_short(group, _LONGEST_NAME if len(marks) <= 10 else 12))
            text.set_parse_math(False)
    if grouping.name != "client":
        for code, group in enumerate(grouping.groups):
            if grouping.colors[code] == NO_COLOR:
                continue
            rows = xy[grouping.codes == code]
            # The row nearest to the median: if a class lies in two separate groups, its median may be in neither.
            x, y = rows[np.argmin(((rows - np.median(rows, axis=0)) ** 2).sum(axis=1))]
            halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
            text = axes.text(
                x, y, _short(group, 12), ha="center", va="center", weight="bold", path_effects=halo
            )
            text.set_fontsize(10 if len(grouping.groups) <= 20 else 6.5)
            text.set_parse_math(False)


def _short(text: str, longest: int = 60) -> str:
    """Return a name on one line, cut with an ellipsis if it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
