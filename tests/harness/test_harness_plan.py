"""What to expect of a run, before anything is sent."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.harness.plan import enough_of, falling, made_up_rows


def of_few_rows(strategy, epsilons):
    return fc.plan(strategy, n_rows=300, n_columns=2, n_clients=2, epsilons=epsilons)


def test_more_budget_costs_less_until_more_buys_nothing():
    strategy = fc.PrivateFederatedKMeans(2, epsilon=1.0, max_norm=4.0, n_rounds=2)
    found = of_few_rows(strategy, (0.2, 2.0, 100.0))
    costs = list(found.excess.values())
    assert costs[0] > 2 * costs[1] > costs[2] >= 0
    assert 0.2 < found.enough < 100.0
    assert "more gains nothing" in str(found) == repr(found)
    assert "       100  below 2%" in str(found)


#: The page that explains plans, and the plan that it shows.
PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
SHOWN = {"n_rows": 5000, "n_columns": 8, "n_clients": 10}


def test_the_page_on_plans_has_the_size_of_a_cluster_that_can_be_told_from_noise():
    found = fc.plan(fc.PrivateKMeans(4, epsilon=1.0, max_norm=3.0), **SHOWN, epsilons=())
    (line,) = (line for line in str(found).splitlines() if "or more rows" in line)
    assert f"\n{line}\n" in PAGE


@pytest.mark.long
def test_the_page_on_plans_has_the_costs_of_all_epsilons():
    """The costs are means of a few draws, so another machine may round a search to another end."""
    found = fc.plan(fc.PrivateKMeans(4, epsilon=1.0, max_norm=3.0), **SHOWN)
    shown = dict(re.findall(r"^ +([0-9.]+)  ([0-9.]+)%$", PAGE, re.MULTILINE))
    assert {float(epsilon) for epsilon in shown} == {0.1, 0.3}
    for epsilon, percent in shown.items():
        assert 100 * found.excess[float(epsilon)] == pytest.approx(float(percent), rel=0.2)
    (enough,) = re.findall(r"Above epsilon ([0-9.]+), more", PAGE)
    assert found.enough == pytest.approx(float(enough), rel=0.1)


def test_enough_lies_where_the_curve_falls_below_what_is_nothing():
    assert enough_of({0.1: 0.2, 1.0: 0.002}) == pytest.approx(10**-0.5)
    assert enough_of({0.1: 0.01, 1.0: 0.0}) == 0.1
    assert enough_of({0.1: 0.01, 1.0: 0.5, 10.0: 0.0}) == pytest.approx(
        10 ** (np.log(25) / np.log(250))
    )
    assert enough_of({0.1: 0.4, 1.0: 0.03}) is None


def test_every_release_has_its_noise_beside_what_it_hides_in():
    found = of_few_rows(fc.PrivateKMeans(2, epsilon=1.0, max_norm=4.0), ())
    contents = [release.content for release in found.releases]
    assert any(
        content.startswith("sums of the rows' offsets from the nearest center of each")
        for content in contents
    )
    counts = [
        release
        for release in found.releases
        if release.content == "number of rows nearest to each center"
    ]
    assert 100 < counts[-1].signal < 250  # the root mean square of two sizes of 300 rows
    assert found.smallest_cluster == pytest.approx(2 * counts[-1].noise)
    assert json.dumps(found.to_dict())


def test_of_more_rows_than_are_made_up_the_noise_is_smaller_in_proportion(monkeypatch):
    strategy = fc.PrivateFederatedKMeans(2, epsilon=1.0, max_norm=4.0, n_rounds=2)
    whole = fc.plan(strategy, n_rows=4000, n_columns=2, n_clients=2, epsilons=())
    monkeypatch.setattr("flower_fedclust.harness.plan.MOST_ROWS", 1000)
    part = fc.plan(strategy, n_rows=4000, n_columns=2, n_clients=2, epsilons=())
    assert part.smallest_cluster == pytest.approx(whole.smallest_cluster, rel=0.02)
    assert part.enough is None


def test_made_up_rows_have_unequal_groups_about_0_which_columns_blur():
    costs = []
    for n_columns in (2, 30):
        rows = made_up_rows(2000, n_columns, 4, np.random.default_rng(0))
        assert np.allclose(rows.mean(axis=0), 0)
        assert (rows**2).sum(axis=1).mean() == pytest.approx(1)
        costs.append(KMeans(4, n_init=1, random_state=0).fit(rows).inertia_ / 2000)
    assert costs[0] < 0.4 < 0.6 < costs[1]


@pytest.mark.long
def test_a_table_like_the_one_to_come_says_how_far_apart_its_groups_lie():
    rng = np.random.default_rng(0)
    near, far = (
        np.repeat(np.eye(3, 4) * distance, 100, axis=0) + rng.standard_normal((300, 4))
        for distance in (1, 20)
    )
    strategy = fc.PrivateKMeans(3, epsilon=1.0, max_norm=12.0)
    costs = [
        fc.plan(strategy, n_rows=600, like=like, epsilons=(0.3,)).excess[0.3]
        for like in (near, far)
    ]
    assert costs[0] < 1.5 < 3 < costs[1]
    with pytest.raises(ValueError, match="n_columns is 3, but like has 4"):
        fc.plan(strategy, n_rows=600, n_columns=3, like=far)
    with pytest.raises(ValueError, match="no more than 3 different rows"):
        fc.plan(strategy, n_rows=600, like=np.repeat(np.eye(3), 50, axis=0))
    with pytest.raises(ValueError, match="n_columns"):
        fc.plan(strategy, n_rows=600)


def test_what_cannot_be_planned_is_said():
    with pytest.raises(ValueError, match="no epsilon"):
        fc.plan(fc.KFED(3), n_rows=100, n_columns=2)
    with pytest.raises(ValueError, match="no centers"):
        fc.plan(fc.FedSCSums(3, epsilon=1.0, max_norm=3.0), n_rows=100, n_columns=2, epsilons=())
    with pytest.raises(ValueError, match="n_rows"):
        fc.plan(fc.PrivateKMeans(3, max_norm=3.0), n_rows=4, n_columns=2)


def test_the_command_prints_the_curve_and_draws_it(tmp_path):
    from flower_fedclust.cli.commands import app

    asked = [
        "plan",
        "federated-kmeans-private",
        "--n-rows",
        "300",
        "--n-columns",
        "2",
        "--n-clusters",
        "2",
    ]
    said = CliRunner().invoke(
        app, [*asked, "--epsilons", "1", "--json", "--out", str(tmp_path / "plan")]
    )
    assert said.exit_code == 0
    assert json.loads(said.stdout)["excess"][0]["epsilon"] == 1.0
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {"plan.png", "plan.json"}


def test_a_curve_never_rises():
    assert falling({10.0: 0.0, 0.1: 0.4, 3.0: 0.02, 1.0: 0.0}) == pytest.approx(
        {0.1: 0.4, 1.0: 0.01, 3.0: 0.01, 10.0: 0.0}
    )
