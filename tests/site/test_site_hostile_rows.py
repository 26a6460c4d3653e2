"""Servers that try to learn rows of a site from where they stand, from kept rows, from caches and from failures."""

import json

import numpy as np
import pandas as pd
import pytest
from hostile import BOTH, PLAN, ROWS, Server, arrays_of, audit, gaussian, plan, refused, site

from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.format import FORMAT
from flower_fedclust.models import MapModel
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.registry import client_types, strategies
from flower_fedclust.strategies.common.frame import Frame, enter
from flower_fedclust.strategies.dp_fedc import DPFedCClient
from flower_fedclust.strategies.maps.map_sums import FederatedMapSumsClient
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient
from flower_fedclust.tables.schema import Schema

BALL = Frame(np.zeros(3), 4.0)


@pytest.fixture
def careful(tmp_path):
    return site(tmp_path)


# A row that is added.

GRADIENT = DPFedCClient.clipped_gradient.asked(
    np.eye(3)[:2],
    max_gradient_norm=1.0,
    rho=0.0,
    mu_h=0.0,
    mu_w=0.0,
    n_membership_steps=0,
    random_state=7,
    max_norm=4.0,
    divisor=1.0,
)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace"])
def test_memberships_that_depend_on_a_rows_place_are_answered_for_a_row_that_is_replaced_alone(
    tmp_path, relation
):
    names = {"gradient": 2.0, "products": np.sqrt(2.0)}
    shares = {name: Share("gaussian", 0.5, relation=relation) for name in names}
    announced = plan(shares)
    releases = [
        gaussian(
            announced.multipliers[name],
            sensitivity,
            share=name,
            relation=relation,
            triangle=name == "products",
        )
        for name, sensitivity in names.items()
    ]
    careful = site(tmp_path, relations=BOTH)
    answer = Server(careful, strategy="dp-fedc").ask(
        GRADIENT, releases=releases, plan=announced.to_json()
    )
    if relation == "replace":
        assert [array.shape for array in arrays_of(answer)] == [(2, 3), (3,)]
    else:
        assert "rows that are replaced" in refused(answer, careful)
        assert careful.ledger.read() == []


# Rows that are kept, and kept again.

LANDMARKS = np.random.default_rng(0).normal(size=(12, 3))
MODEL = MapModel("tsne", LANDMARKS, LANDMARKS[:, :2], LANDMARKS[:2, :2], n_neighbors=2.0)

#: How rows are kept, for rows of three columns and for those of two that a map has.
KEEPING = {
    "place_rows": lambda d: FederatedMapSumsClient.place_rows.asked(
        *MapModel(
            "tsne", LANDMARKS[:, :d], LANDMARKS[:, :2], LANDMARKS[:2, :2], n_neighbors=2.0
        ).to_arrays()
    ),
}


def keeping_methods(kind):
    found = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
    return [askable.answer for askable in found if askable.answer.keeps]


def chains():
    for kind in client_types(strategies()):
        for first in keeping_methods(kind):
            for second in keeping_methods(kind):
                yield pytest.param(
                    kind, first, second, id=f"{kind.__name__}-{first.task}-{second.task}"
                )


@pytest.mark.parametrize(("kind", "first", "second"), list(chains()))
def test_what_is_kept_of_rows_that_come_of_several_comes_of_several(careful, kind, first, second):
    what_is_kept_comes_of_several(careful, kind, first, second)


def what_is_kept_comes_of_several(careful, kind, first, second):
    server = Server(careful, strategy="")
    n_columns = 3
    for answer, rows in ((first, ""), (second, first.sends[0].kept_as)):
        asked = KEEPING[answer.task](n_columns)
        assert arrays_of(server.ask(asked, client=kind.key(), rows=rows, plan=PLAN.to_json())) == []
        n_columns = 2 if answer.task == "place_rows" else n_columns
    # Any method that declares what a row moves: of all clients, that of the histograms does.
    asked = kind.exponents.asked(Schema.of({"columns": {"a": {"kind": "number"}}})).mean()
    noise = gaussian(PLAN.multipliers["row_sum"], 2.0, share="row_sum")
    kept = second.sends[0].kept_as
    answer = server.ask(asked, client=kind.key(), rows=kept, releases=[noise], plan=PLAN.to_json())
    assert "nothing bounds what it sends" in refused(answer, careful)


def test_every_way_to_keep_rows_is_among_them():
    tasks = {answer.task for kind in client_types(strategies()) for answer in keeping_methods(kind)}
    assert tasks == set(KEEPING)


# Arrays whose bytes are those of others.


def test_the_same_bytes_in_another_type_are_another_frame(tmp_path):
    """Where one process answers several messages, the frame of one had been found in the place of another's."""
    rows = np.random.default_rng(0).normal(size=(3000, 3)) * 1e6
    loose = site(tmp_path, rows=rows, epsilon_per_run=1e3, epsilon=1e4)
    server = Server(loose)
    noise = {"releases": [gaussian(1.0)]}
    wide = PrivateKMeansClient.row_sum.asked(frame=Frame(np.zeros(3), 8e6))
    (total,) = arrays_of(server.ask(wide, **noise))
    assert np.abs(total).max() > 0
    # The radius and the norm as other bytes: 8e6 as an integer is 4e-317 as a float.
    arrays, fields = wide.to_wire()
    other = [arrays[0], np.array([8_000_000, 2]).view(np.float64), *arrays[2:]]
    told = {
        "client": PrivateKMeansClient.key(),
        "round": 3,
        "n_clients": 3,
        "n_shares": 1,
        "parts": '["a part"]',
    }
    answer = server.send(other, told | {"plan": server.plan} | fields)
    assert "radius" in refused(answer, loose)


def test_directions_of_the_same_bytes_in_another_shape_are_others():
    rows = enter(np.random.default_rng(0).normal(size=(10, 4)), np.zeros(4), np.array([4.0, 2.0]))
    directions = np.random.default_rng(1).normal(size=(4, 2)) / 4
    assert rows.projected(directions).integers.shape == (10, 2)
    with pytest.raises(ValueError, match="mismatch"):
        rows.projected(directions.reshape(2, 4))


# Failures.

SCHEMA = Schema.of(
    {"columns": {name: {"kind": "number", "scale": "rank", "bounds": [-9, 9]} for name in "abc"}}
)
GOOD = {"low": -9.0, "high": 9.0, "quantiles": [-9.0, 0.0, 9.0], "ranks": [0.0, 0.5, 1.0]}
COUNT = PrivateKMeansClient.distances.asked(frame=BALL)


def prepared(server, **figures):
    schema = SCHEMA.to_json()
    server.send(
        [], {"client": PrivateKMeansClient.key(), "task": "enrol", "round": 1, "schema": schema}
    )
    content = {
        "version": 1,
        "schema": json.loads(schema),
        "figures": dict.fromkeys("abc", GOOD | figures),
    }
    return server.ask(PrivateKMeansClient.prepare.asked(as_bytes(json.dumps(content))))


@pytest.mark.parametrize(
    "figures",
    [
        {"quantiles": [-9.0, 1.0, 0.0, 9.0], "ranks": [0.0, 0.1, 0.2, 1.0]},
        {"quantiles": [-9.0, 5e-324, 0.0, 9.0], "ranks": [0.0, 0.1, 0.2, 1.0]},
        {"quantiles": [-9.0, float("nan"), 9.0]},
        {"ranks": [0.0, float("inf"), 1.0]},
        {"low": float("nan")},
        {"high": -9.0},
        {"spread": float("nan")},
        {"fill": 1e300},
    ],
)
def test_a_preparation_that_some_rows_could_not_have_is_refused_whatever_the_rows_are(
    tmp_path, figures
):
    said = []
    for name, rows in (("one", ROWS), ("other", np.full((60, 3), 8.5))):
        careful = site(tmp_path / name, rows=rows, schema=SCHEMA)
        answer = prepared(Server(careful), **figures)
        said.append(answer.metrics)
        assert "the preparation of column" in audit(careful)[-1]["reason"]
    assert said[0] == said[1] == {"format": FORMAT, "client": "north", "failure": "failed"}


def test_a_preparation_that_is_right_is_taken(tmp_path):
    careful = site(tmp_path, schema=SCHEMA)
    server = Server(careful)
    assert "failure" not in prepared(server).metrics
    noise = gaussian(PLAN.multipliers["row_sum"], 1.0, share="row_sum")
    (counts,) = arrays_of(server.ask(COUNT, releases=[noise], plan=PLAN.to_json()))
    assert counts.shape == (16,)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_whether_rows_could_be_placed_is_not_said(tmp_path):
    """What leaves nothing costs nothing: whether it worked would be an answer, and any number of them are free."""
    far = np.vstack([ROWS[:-1], [[1e300, 0.0, 0.0]]])
    steep = MapModel(
        "tsne", LANDMARKS, LANDMARKS[:, :2], LANDMARKS[:2, :2], n_neighbors=2.0,
        origin=np.zeros(3), directions=np.eye(3) * 1e200,
    )  # fmt: skip
    heard = []
    for name, rows in (("one", ROWS), ("other", far)):
        careful = site(tmp_path / name, rows=pd.DataFrame(rows).to_numpy())
        server = Server(careful, strategy="fed-tsne-sums")
        placed = server.ask(FederatedMapSumsClient.place_rows.asked(*steep.to_arrays()))
        again = server.ask(
            FederatedMapSumsClient.place_rows.asked(*MODEL.to_arrays()), rows="places"
        )
        for answer in (placed, again):
            # The line's number, and its salted hash.
            assert answer.metrics.pop("ledger").split(":")[0] in "35"
        heard.append([placed.metrics, again.metrics])
    assert heard[0] == heard[1]


GAPS = Schema.of(
    {"columns": {name: {"kind": "number", "bounds": [-9, 9], "gaps": "mean"} for name in "abc"}}
)


def test_whether_a_table_has_gaps_is_not_said_before_the_charge(tmp_path):
    """Columns in another order had numbers made of the table, which failed at once, and free of charge, for a gap."""
    said = []
    for name, first in (("one", 0.0), ("other", np.nan)):
        own = site(tmp_path / name, rows=np.vstack([[first, 0.0, 0.0], ROWS]), schema=GAPS)
        answer = Server(own).ask(COUNT, columns=json.dumps(["c", "b", "a"]))
        said.append((answer.metrics, audit(own)[-1]["event"], own.ledger.read()))
    assert said[0] == said[1]
    assert said[0][0]["failure"] == "refused"
