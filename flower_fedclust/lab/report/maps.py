"""The maps of a comparison: a few thousand rows of each, to be drawn and pointed at in the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.lab.groupings import NO_COLOR, Grouping, base64_text, groupings_of, natural_order
from flower_fedclust.lab.report.colors import PANELS, readable_color
from flower_fedclust.lab.report.data import Contender, Scenario, TrialResult
from flower_fedclust.lab.report.markup import Html, details, joined, number_text, plural, table, tag, unseen

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


def map_figures(scenario: Scenario, identifier: str) -> tuple[list[Html], list[dict[str, Any]]]:
    """Return a figure for each contender that made a map, and what the page needs to draw it."""
    figures: list[Html] = []
    contents: list[dict[str, Any]] = []
    for one in scenario.contenders:
        trial = next((trial for trial in one.trials if trial.embedding_folder is not None), None)
        drawn = None if trial is None else read_map(trial)
        if trial is not None and drawn is not None:
            name = f"{identifier}-{len(figures)}"
            figures.append(_figure(scenario, one, trial.text("seed") or "unknown", drawn, name))
            contents.append(_content(drawn, name))
    return figures, contents


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
    except (OSError, ValueError):
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


def _figure(scenario: Scenario, one: Contender, seed: str, drawn: MapOfRows, identifier: str) -> Html:
    of = "" if len(drawn.places) == drawn.n_rows else f" of {drawn.n_rows:,}, drawn at random"
    about = f"{plural(len(drawn.places), 'row')}{of}; seed {seed}."
    name = f"{scenario.name}: {one.name}"
    # An application receives the arrow keys, which a screen reader would keep for itself over a picture.
    canvas = tag(
        "canvas",
        tabindex="0",
        role="application",
        aria_roledescription="map",
        aria_label=f"{name}. {about} Arrow keys go from row to row.",
        data_map=identifier,
    )
    ring, tip = tag("div", class_="ring", hidden=True), tag("div", class_="tip", aria_hidden="true", hidden=True)
    places = _places_table(name, drawn, f"{identifier}-places")
    return tag(
        "figure",
        tag("figcaption", tag("strong", one.name), " ", tag("span", about)),
        tag("div", canvas, ring, tip, tag("span", class_="unseen", role="status"), class_="map"),
        tag("ul", class_="swatches", data_legend=identifier, aria_hidden="true"),
        details(joined(["Where the groups lie", unseen(f" ({name})")]), places),
    )


def _places_table(name: str, drawn: MapOfRows, identifier: str) -> Html:
    """Return the middle and the spread of each group (of each class, if classes are known), as the picture shows."""
    names = [grouping.name for grouping in drawn.groupings]
    grouping = drawn.groupings[names.index("class") if "class" in names else -1]
    rows = []
    for code, group in enumerate(grouping.groups):
        part = drawn.places[grouping.codes == code]
        if len(part):
            middle = np.median(part, axis=0)
            spread = float(np.median(np.hypot(*(part - middle).T)))
            rows.append([group, f"{len(part):,}", *(number_text(float(value), 3) for value in (*middle, spread))])
    headings = [grouping.name, "rows", "median x", "median y", "median distance from there"]
    return table(f"{name}, where each {grouping.name} lies on the map.", headings, rows, identifier=identifier)


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

    array: NDArray[np.float64] = pd.read_csv(file).to_numpy(dtype=np.float64)
    if array.shape[1] != n_columns or not np.isfinite(array).all():
        raise ValueError(f"{file} does not hold {n_columns} columns of finite numbers.")
    return array


def _clusters(file: Path, n_rows: int) -> NDArray[np.intp] | None:
    if not file.is_file():
        return None
    clusters = _numbers(file, 1)[:, 0].astype(np.intp)
    return clusters if len(clusters) == n_rows else None


def _classes(file: Path) -> dict[str, NDArray[Any]]:
    """Return the true classes by client, in the order in which the clients were given."""
    import pandas as pd

    if not file.is_file():
        return {}
    frame = pd.read_csv(file, dtype={"client": str}, keep_default_na=False, na_values={"class": [""]})
    return {str(name): part.to_numpy(dtype=object) for name, part in frame.groupby("client", sort=False)["class"]}


def _client_names(stems: Sequence[str], clients: Sequence[str]) -> list[str]:
    """Return the clients of files: a file may be named by the client's number and a name similar to the client's."""
    names = []
    for stem in stems:
        number = stem.partition("-")[0]
        is_number = stem not in clients and number.isdecimal() and int(number) < len(clients)
        names.append(clients[int(number)] if is_number else stem)
    return names
