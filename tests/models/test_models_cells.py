"""A model of labeled cells: any row has a cluster, and a message that makes no sense is refused."""

import json

import numpy as np
import pytest

from flower_fedclust import models
from flower_fedclust.exact.grid import rows_onto_grid
from flower_fedclust.models import CellModel, Model

LABELS = [[0, 0, -1], [1, 1, 1]]
DENSITY = [[5.0, 3.0, 0.0], [1.0, 4.0, 1.0]]


def model(**changes):
    options = {"density": DENSITY, "origin": [10.0, 20.0]} | changes
    return CellModel(
        options.pop("labels", LABELS), options.pop("n_clusters", 2), [0.0, -1.0], 0.5, **options
    )


def test_every_row_has_the_label_of_its_cell_or_of_the_nearest_at_the_edge():
    rows = [[10.1, 19.1], [10.6, 19.6], [10.2, 20.2], [-99.0, 0.0], [99.0, 1e300]]
    assert model().predict(rows).tolist() == [0, 1, -1, 0, 1]
    assert model().cost([[10.25, 19.25]]) == pytest.approx(0.0)
    assert model().cluster_points == pytest.approx(
        np.array([[10.25, 19.4375], [10.75, 19.75]]), abs=1e-6
    )
    assert model().sizes_.tolist() == [8.0, 6.0]


def test_clusters_are_exact_on_a_grid():
    rows = np.random.default_rng(0).uniform(9, 21, (500, 2))
    integers, exponent = rows_onto_grid(rows, np.zeros(2), 64.0)
    assert np.array_equal(model().exact_clusters(integers, exponent), model().predict(rows))
    turned = model(directions=[[0.6, -0.8], [0.8, 0.6]])
    assert np.array_equal(turned.exact_clusters(integers, exponent), turned.predict(rows))


def test_a_saved_model_can_be_read_by_people_and_loaded(tmp_path):
    made = model()
    made.columns_ = ["age", "dose"]
    made.save(tmp_path)
    written = json.loads((tmp_path / "model.json").read_text())
    assert written["grid"] == {"low": [10.0, 19.0], "width": 0.5, "cells": [2, 3], "directions": []}
    assert written["regions"][0]["rows"] == 8.0
    assert written["regions"][0]["to"] == [10.5, 20.0]
    rows = np.random.default_rng(1).uniform(9, 22, (50, 2))
    assert np.array_equal(Model.load(tmp_path).predict(rows), made.predict(rows))


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": [[0, 0, 2], [1, 1, 1]]},
        {"labels": [[0, 0, 0.5], [1, 1, 1]]},
        {"labels": [[0, 0, np.nan], [1, 1, 1]]},
        {"labels": np.zeros((300, 300)), "density": np.zeros((300, 300))},
        {"labels": np.zeros((1, 1, 1, 1))},
        {"density": [[1.0]]},
        {"density": [[5.0, 3.0, -1.0], [1.0, 4.0, np.inf]]},
        {"origin": [0.0]},
        {"origin": [0.0, np.nan]},
        {"directions": [[1.0, 0.0, 0.0]]},
        {"directions": [[1.0, 0.0], [np.nan, 1.0]]},
        {"directions": [[1.0, 0.0], [5.0, 1.0]]},
        {"n_clusters": 0},
    ],
)
def test_impossible_cells_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes)) + "|a grid has"):
        model(**changes)


@pytest.mark.parametrize(
    "facts", [[0.0, 2.0], [-1.0, 2.0], [np.nan, 2.0], [1.0, 1e9], [1.0, 1.5], [1.0, np.nan], [1.0]]
)
def test_a_hostile_message_is_refused(facts):
    labels, density, low, _, *others = model().to_arrays()
    with pytest.raises(ValueError, match=r"a grid needs|a model of cells|unpack|NaN"):
        CellModel.from_arrays([labels, density, low, np.array(facts), *others])


def test_the_class_is_exported():
    assert models.CellModel is CellModel
