"""The page of a result: one HTML file to hand to somebody, which needs no network and prints well.

It shows what the run has released. If the run has not released a number, the page may show the
exact one, and says so.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import DEVIATIONS
from flower_fedclust.names import plural
from flower_fedclust.privacy.report import Message, PrivacyReport
from flower_fedclust.results.doubts import advice_on_number
from flower_fedclust.results.pictures import (
    Profile,
    cluster_figure,
    counted_in,
    group_colors,
    has_sizes,
    moved_by_noise,
    places_in_plane,
    profile_of,
    shares_and_errors,
    sizes_of,
)
from flower_fedclust.results.result_data import ResultData
from flower_fedclust.results.survival import survival_on_page
from flower_fedclust.tables import words
from flower_fedclust.tables.estimates import Estimate
from flower_fedclust.tables.table_one import WIDEST_TABLE

Floats = NDArray[np.float64]

#: The width, height and margin of the picture of the centers, in its own units; the page scales it to its width.
_WIDTH, _HEIGHT, _MARGIN = 480.0, 340.0, 44.0
#: The area of a disc is in proportion to the size of its cluster. The first number is the radius of a cluster that
#: has all rows, the second is the smallest radius.
_RADIUS, _LEAST_RADIUS = 62.0, 5.0


# Templates.


def page_of(package: str, template: str, **content: Any) -> str:
    """Fill a template of a package, and return the HTML; every text in the content is escaped."""
    return _environment(package).get_template(template).render(content)


@cache
def _environment(package: str) -> Environment:
    """Return the templates of a package; a name that a template uses and does not get is an error."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": plural, "short": "{:g}".format, "tenth": "{:.1f}".format}
    return environment


# The page.


def result_page(result: ResultData, subject: str = "") -> str:
    """Return the page of a result as HTML.

    ``subject`` names what was clustered, such as the file of rows. For each number, the page says
    whether the run released it, or whether it was computed exactly from labels. Whoever hands on
    the page must know the difference.
    """
    n_clusters = result.model.n_clusters
    shares, errors = shares_and_errors(result, n_clusters)
    are_exact = (
        result.clusters is None
        and not has_sizes(result, n_clusters)
        and any(map(len, result.labels_of_clients))
    )
    are_known = are_exact or result.clusters is not None or has_sizes(result, n_clusters)
    profile = profile_of(result, shares, errors)
    has_guarantee = bool(result.privacy.releases)
    plane = _plane(result, shares, errors)
    return page_of(
        "flower_fedclust.results",
        "result.html",
        title=f"{plural(n_clusters, 'cluster')}{_of_rows(result)} at {plural(len(result.names), 'site')}",
        subject=subject,
        strategy=result.strategy,
        made=f"{datetime.now():%Y-%m-%d}",
        plane=plane,
        has_rings=any(cluster["ring"] > cluster["radius"] / 3 for cluster in plane),
        picture=None
        if result.model.space == "rows" and result.model.cluster_points is not None
        else _picture(result),
        cards=_cards(result, shares, errors, are_known),
        is_described=result.clusters is not None,
        counted=counted_in(result, n_clusters),
        has_noise=_has_noise(result),
        bounds=[] if result.clusters is None else result.clusters.bounds,
        survival=None if result.survival is None else survival_on_page(result.survival),
        table=None
        if result.clusters is None or n_clusters > WIDEST_TABLE
        else result.clusters.table_one(),
        profile=None if profile is None else _heat(profile),
        unit="" if profile is None else profile.unit,
        has_hidden=profile is not None and bool(np.isnan(profile.values).any()),
        doubts=[(str(doubt), doubt.basis == "rows" and has_guarantee) for doubt in result.doubts],
        number="" if result.number is None else advice_on_number(result.number, result.doubts),
        has_exact_sizes=are_exact and has_guarantee,
        has_exact_doubts=has_guarantee and any(doubt.basis == "rows" for doubt in result.doubts),
        **_privacy(result.privacy),
        failures=len({failure.client for failure in result.failures}),
        rounds=result.n_rounds,
        seconds=f"{result.seconds:.2g}",
    )


def _privacy(report: PrivacyReport) -> dict[str, Any]:
    """Return the sentences about privacy, for the template."""
    return {
        "guarantee": report.guarantee(),
        "is_covered": report.covers_everything,
        "neighbors": report.neighbors,
        "meaning": report.meaning(),
        "protected": _contents(report.releases),
        "unprotected": _contents(report.unprotected),
        "notes": report.notes,
        "assumptions": report.assumptions(),
        "report": str(report),
    }


def _of_rows(result: ResultData) -> str:
    """Return how many rows there were, such as " of 150 rows".

    If noise protects the number of rows, the released number is given, rounded. Returns "" if none
    was released, or if the floor hides it.
    """
    if not result.privacy.releases:
        n_rows, sizes = (
            sum(map(len, result.labels_of_clients)),
            sizes_of(result, result.model.n_clusters),
        )
        # The total less the sizes that are shown would reveal the hidden one.
        is_any_hidden = sizes is not None and bool(sizes.is_hidden.any())
        return f" of {plural(n_rows, 'row')}" if n_rows and not is_any_hidden else ""
    if result.sizes is None or not has_sizes(result, result.model.n_clusters):
        return ""
    total = float(np.maximum(result.sizes.counts, 0.0).sum())
    error = DEVIATIONS * result.sizes.deviation * math.sqrt(len(result.sizes.counts))
    if total <= error:
        return ""
    unit = 10.0 ** math.floor(math.log10(max(error, 1.0)))
    counted = counted_in(result, result.model.n_clusters).removesuffix("s")
    return f" of about {plural(round(round(total / unit) * unit), counted)}"


def _contents(messages: Sequence[Message]) -> list[str]:
    """Return the contents of messages, with their detail and, if there were several, the number of rounds."""
    rounds: dict[str, set[int]] = {}
    for message in messages:
        rounds.setdefault(f"{message.content} ({message.detail})", set()).add(message.round)
    return [
        f"{content}, in {len(numbers)} rounds" if len(numbers) > 1 else content
        for content, numbers in rounds.items()
    ]


def _cards(
    result: ResultData, shares: Floats, errors: Floats, are_known: bool
) -> list[dict[str, Any]]:
    """Return for each cluster its color, its size as text and as a bar, and how it differs from the rest.

    ``are_known`` says whether the sizes are known; if they are not, the bars are left out.
    """
    largest = max(float((shares + DEVIATIONS * errors).max()), 1e-12)
    cards, sizes, counted = [], sizes_of(result, len(shares)), counted_in(result, len(shares))
    for index, (color, share, error) in enumerate(
        zip(group_colors(len(shares)), shares, errors, strict=True)
    ):
        size = _size(sizes, index, counted) if are_known and sizes is not None else ""
        sentences = [] if result.clusters is None else result.clusters.sentences(index)
        low, high = max(share - DEVIATIONS * error, 0.0), share + DEVIATIONS * error
        card: dict[str, Any] = {
            "color": color,
            "size": sentences[0] if sentences else size,
            "said": sentences[1:],
        }
        card |= {"is_noise": bool(share <= DEVIATIONS * error), "has_bar": are_known}
        card |= {
            "width": 100 * share / largest,
            "low": 100 * low / largest,
            "error": 100 * (high - low) / largest,
        }
        cards.append(card)
    return cards


def _has_noise(result: ResultData) -> bool:
    """Tell whether any size is printed with the error of its noise."""
    sizes = sizes_of(result, result.model.n_clusters)
    return sizes is not None and bool((sizes.error[~sizes.is_hidden] > 0).any())


def _size(sizes: Estimate, index: int, counted: str) -> str:
    """Return the share of a cluster in words."""
    value, error, limit, high = (
        float(ends[index]) for ends in (sizes.value, sizes.error, sizes.fewer_than, sizes.high)
    )
    return words.size(value, DEVIATIONS * error, limit, high, counted)


def _plane(result: ResultData, shares: Floats, errors: Floats) -> list[dict[str, Any]]:
    """Return a disc for each center: its place, radius and color, and how far noise may have moved it.

    [] if the centers do not lie among the rows, or if there is only one.
    """
    centers = result.model.cluster_points
    if centers is None or result.model.space != "rows" or len(centers) < 2:
        return []
    places = places_in_plane(centers, shares, "rows")
    moved = DEVIATIONS * moved_by_noise(result, len(centers))
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    reach = np.maximum(np.ptp(places, axis=0), 1e-12)
    scale = float(((np.array([_WIDTH, _HEIGHT]) - 2 * _MARGIN) / reach).min())
    at = (places - middle) * [scale, -scale] + [_WIDTH / 2, _HEIGHT / 2]
    discs = []
    for color, (x, y), share, error, noise in zip(
        group_colors(len(shares)), at, shares, errors, moved, strict=True
    ):
        radius = max(_RADIUS * math.sqrt(max(float(share), 0.0)), _LEAST_RADIUS)
        disc = {
            "x": x,
            "y": y,
            "radius": radius,
            "color": color,
            "ring": min(noise * scale, _WIDTH),
        }
        discs.append({**disc, "is_noise": bool(share <= DEVIATIONS * error)})
    return discs


def _picture(result: ResultData) -> str | None:
    """Return the picture of a map or of cells as a PNG in base64.

    None without matplotlib, or if there is nothing to draw.
    """
    if find_spec("matplotlib") is None or result.model.cluster_points is None:
        return None
    cluster_figure(result).savefig(content := io.BytesIO(), format="png")
    return base64.b64encode(content.getvalue()).decode()


def _heat(profile: Profile) -> list[Mapping[str, Any]]:
    """Return the rows of the heat map: for each name the values as text, with the strength and sign of their color."""
    limit = max(float(np.nanmax(np.abs(np.nan_to_num(profile.values)))), 1e-12)
    rows: list[Mapping[str, Any]] = []
    for name, values in zip(profile.names, profile.values.T, strict=True):
        cells = [
            None
            if math.isnan(value)
            else {
                "text": f"{value:+.1f}".replace("-", "−"),
                "part": f"{abs(value) / limit:.2f}",
                "is_more": value > 0,
            }
            for value in values.tolist()
        ]
        rows.append({"name": name, "cells": cells})
    return rows
