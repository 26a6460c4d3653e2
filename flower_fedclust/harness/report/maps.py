"""The maps of a comparison: a few thousand rows of each, to be drawn and pointed at in the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.colors import PANELS, readable_color
from flower_fedclust.harness.report.data import Contender, Scenario, TrialResult
from flower_fedclust.harness.report.texts import number_text
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import reading
from flower_fedclust.results.labels import read_labels
from flower_fedclust.results.pictures.groupings import NO_COLOR, Grouping, base64_text, groupings_of, natural_order

#: How many rows of a map the page holds.
MOST_ROWS = 5000
_STEPS = 65535


@dataclass(frozen=True)
class MapOfRows:
    """The places of rows, and the client, the class and the cluster of each."""

    places: NDArray[np.float64]
    numbers: NDArray[np.intp]
    groupings: Sequence[Grouping]
    n_rows: int


@dataclass(frozen=True)
class MapFigure:
    """The map of one contender: what the page says of it, and what it needs to draw it."""

    id: str
    title: str
    name: str
    about: str
    group: str  #: Of what the table below has a row each: "class" or "cluster".
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    content: dict[str, Any]


def map_figures(scenario: Scenario, identifier: str) -> list[MapFigure]:
    """Return a figure for each contender that made a map."""
    figures: list[MapFigure] = []
    for one in scenario.contenders:
        trial = next((trial for trial in one.trials if trial.embedding_folder is not None), None)
        drawn = None if trial is None else read_map(trial)
        if trial is not None and drawn is not None:
            figures.append(_figure(scenario, one, trial, drawn, f"{identifier}-map-{len(figures)}"))
    return figures


def read_map(trial: TrialResult, most_rows: int = MOST_ROWS) -> MapOfRows | None:
    """Return the map that a trial saved, of at most so many rows drawn at random; None if it cannot be read."""
    folder = trial.embedding_folder
    if folder is None or trial.folder is None:
        return None
    files = sorted(folder.glob("*.csv"), key=lambda file: natural_order(file.stem))
    try:
        places = [_numbers(file, 2) for file in files]
        folders = [trial.folder / "labels" / file.name for file in files]
        clusters = [_clusters(file, len(part)) for file, part in zip(folders, places, strict=True)]
        known = _classes(trial.folder / "classes.csv")
    except DataError:
        return None
    names = _client_names([file.stem for file in files], list(known))
    classes = [
        values if (values := known.get(name)) is not None and len(values) == len(part) else None
        for name, part in zip(names, places, strict=True)
    ]
    if not sum(map(len, places)):
        return None
    labels = classes if any(part is not None for part in classes) else None
    columns = {"cluster": clusters} if any(part is not None for part in clusters) else {}
    groupings = groupings_of(places, names, labels, columns)
    xy, numbers = np.concatenate(places), np.concatenate([np.arange(len(part)) for part in places])
    chosen = np.arange(len(xy))
    if len(xy) > most_rows:
        chosen = np.sort(np.random.default_rng(0).choice(len(xy), most_rows, replace=False))
    drawn = [Grouping(one.name, one.groups, one.colors, one.codes[chosen]) for one in groupings]
    return MapOfRows(xy[chosen], numbers[chosen], drawn, len(xy))


def _figure(scenario: Scenario, one: Contender, trial: TrialResult, drawn: MapOfRows, identifier: str) -> MapFigure:
    """Return the figure, with the middle and the spread of each class, or cluster, as the picture shows them."""
    of = "" if len(drawn.places) == drawn.n_rows else f" of {drawn.n_rows:,}, drawn at random"
    names = [grouping.name for grouping in drawn.groupings]
    grouping = drawn.groupings[names.index("class") if "class" in names else -1]
    rows = []
    for code, group in enumerate(grouping.groups):
        part = drawn.places[grouping.codes == code]
        if len(part):
            middle = np.median(part, axis=0)
            spread = float(np.median(np.hypot(*(part - middle).T)))
            rows.append([group, f"{len(part):,}", *(number_text(float(value), 3) for value in (*middle, spread))])
    return MapFigure(
        identifier,
        one.name,
        f"{scenario.name}: {one.name}",
        f"{plural(len(drawn.places), 'row')}{of}; seed {trial.text('seed') or 'unknown'}.",
        grouping.name,
        [grouping.name, "rows", "median x", "median y", "median distance from there"],
        rows,
        _content(drawn, identifier),
    )


def _content(drawn: MapOfRows, identifier: str) -> dict[str, Any]:
    """Return what the page draws: places in 65,536 steps of the wider side, finer than any screen."""
    low = drawn.places.min(axis=0)
    widest = float((drawn.places.max(axis=0) - low).max()) or 1.0
    return {
        "id": identifier,
        "places": base64_text(np.rint((drawn.places - low) / widest * _STEPS), "<u2"),
        "numbers": base64_text(drawn.numbers, "<u4"),
        "groupings": [
            {"name": one.name, "groups": one.groups, "colors": _colors(one), "codes": base64_text(one.codes, "<u2")}
            for one in drawn.groupings
        ],
    }


def _colors(grouping: Grouping) -> dict[str, list[str]]:
    """Return the colours in both schemes; only the colour of rows without a class may have a low contrast."""
    return {
        scheme: [color if color == NO_COLOR else readable_color(color, panel) for color in grouping.colors]
        for scheme, panel in PANELS.items()
    }


def _numbers(file: Path, n_columns: int) -> NDArray[np.float64]:
    import pandas as pd

    with reading(file, "a map", "run again") as opened:
        array: NDArray[np.float64] = pd.read_csv(opened).to_numpy(dtype=np.float64)
        if array.shape[1] != n_columns or not np.isfinite(array).all():
            raise DataError(f"{file} does not hold {n_columns} columns of finite numbers.")
        return array


def _clusters(file: Path, n_rows: int) -> NDArray[np.intp] | None:
    if not file.is_file():
        return None
    clusters = read_labels(file).labels
    return clusters if len(clusters) == n_rows else None


def _classes(file: Path) -> dict[str, NDArray[Any]]:
    """Return the true classes by client, in the order in which the clients were given."""
    import pandas as pd

    if not file.is_file():
        return {}
    with reading(file, "a file of classes", "run again") as opened:
        frame = pd.read_csv(opened, dtype={"client": str}, keep_default_na=False, na_values={"class": [""]})
        return {str(name): part.to_numpy(dtype=object) for name, part in frame.groupby("client", sort=False)["class"]}


def _client_names(stems: Sequence[str], clients: Sequence[str]) -> list[str]:
    """Return the clients of files: a file may be named by the client's number and a name similar to the client's."""
    names = []
    for stem in stems:
        number = stem.partition("-")[0]
        is_number = stem not in clients and number.isdecimal() and int(number) < len(clients)
        names.append(clients[int(number)] if is_number else stem)
    return names
