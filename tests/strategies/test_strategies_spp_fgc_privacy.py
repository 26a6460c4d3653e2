"""The privacy of SPPFGC and SPPFGCSums, from the rounds they yield: what a row can change, what the report says."""

import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from flower_fedclust import SPPFGC, ClientData, SPPFGCSums, simulate
from flower_fedclust.privacy.accounting import calibrate
from flower_fedclust.protocol import Gather, Sum
from flower_fedclust.steps.cells import CellNoise, CellsClient
from flower_fedclust.strategies import spp_fgc, spp_fgc_sums
from flower_fedclust.strategies.spp_fgc import SPPFGCClient

BOUND = 20.0
ALLOWANCE = 1 + 1e-9


class Recording:
    """Notes the rounds that a strategy yields, and what they brought."""

    def protocol(self):
        self.seen.clear()
        generator = super().protocol()
        brought = None
        while True:
            try:
                round_ = generator.send(brought)
            except StopIteration as stop:
                return stop.value
            brought = yield round_
            self.seen.append((round_, brought))


class Sums(Recording, SPPFGCSums):
    pass


class Graphs(Recording, SPPFGC):
    pass


def clients_of(n_columns=3, n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    means = np.zeros((3, n_columns))
    means[1, 0] = means[2, n_columns - 1] = 9.0
    return [means[rng.integers(3, size=n_rows)] + 0.5 * rng.normal(size=(n_rows, n_columns)) for _ in range(4)]


def ran(kind, n_columns=3, *, seed=0, **options):
    clients = clients_of(n_columns)
    strategy = kind(3, **({"epsilon": 5.0, "max_l1_norm": BOUND} | options))
    strategy.seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = simulate(strategy, clients, seed=seed)
    return strategy.seen, result, clients


RUNS = {
    "refined": (Sums, 3, {}),
    "votes": (Sums, 3, {"epsilon": 500.0, "n_prototypes": 9, "n_lloyd_rounds": 2}),
    "votes_local": (Sums, 3, {"epsilon": 500.0, "n_prototypes": 9, "noise": "local"}),
    "one_column": (Sums, 1, {"noise": "clients"}),
    "wide": (Sums, 66, {}),
    "graphs": (Graphs, 3, {}),
    "graphs_diagonal": (Graphs, 3, {"covariance": "diagonal", "n_prototypes": 5}),
    "graphs_one_column": (Graphs, 1, {}),
    "graphs_wide": (Graphs, 66, {}),
}


@pytest.fixture(scope="module")
def run_of():
    """The rounds and the result of every run, made once."""
    made = {}

    def get(name):
        if name not in made:
            kind, n_columns, options = RUNS[name]
            made[name] = ran(kind, n_columns, **options)
        return made[name]

    return get


def released(seen):
    """The rounds that carry a release."""
    return [round_ for round_, _ in seen if any(round_.releases)]


def reply_to(round_, rows):
    client = SPPFGCClient(ClientData(rows), name="0")
    reply = getattr(client, SPPFGCClient._methods(round_.task)[0])(*round_.arrays, **round_.arguments)
    reply = reply if isinstance(reply, tuple) else (reply,)
    assert len(reply) == len(round_.releases)
    return [(array, release) for array, release in zip(reply, round_.releases, strict=True) if release]


def rows_that_nobody_foresaw(rng, n_columns, largest):
    rows = rng.normal(size=(rng.integers(1, 9), n_columns)) * 10.0 ** rng.uniform(-3, 4, size=(1, 1))
    rows += rng.choice([0.0, 3.0, -1e6])
    extreme = rng.choice([0.0, BOUND, 1e3, 1e12, largest])
    signs = rng.choice([-1.0, 0.0, 1.0], size=(2, n_columns))
    return np.concatenate([rows, signs * extreme, np.eye(n_columns)[:1] * -extreme])


@pytest.mark.parametrize("name", RUNS)
def test_one_row_moves_no_answer_by_more_than_the_sensitivities_allow(run_of, name):
    seen, *_ = run_of(name)
    n_columns = RUNS[name][1]
    for seed in range(30 if n_columns < 9 else 8):
        rng = np.random.default_rng(seed)
        rows = rows_that_nobody_foresaw(rng, n_columns, 1e200 if RUNS[name][0] is Sums else 1e100)
        left_out = rng.integers(len(rows))
        for round_ in released(seen):
            cost = 0.0
            without = reply_to(round_, np.delete(rows, left_out, axis=0))
            for (one, release), (other, _) in zip(reply_to(round_, rows), without, strict=True):
                changed = np.abs(one - other).sum()
                # Sums of extreme rows lose their last digits.
                assert changed <= release.sensitivity * ALLOWANCE
                cost += changed / release.scale
            assert cost <= sum(1 / release.noise_multiplier for release in round_.releases if release) * ALLOWANCE


@pytest.mark.parametrize("name", RUNS)
def test_sensitivities_are_no_larger_than_they_have_to_be(run_of, name):
    seen, *_ = run_of(name)
    n_columns = RUNS[name][1]
    extreme = np.eye(n_columns)[:1] * -1e12
    for round_ in released(seen):
        nothing = [np.zeros_like(array) for array, _ in reply_to(round_, extreme)]
        for (array, release), zeros in zip(reply_to(round_, extreme), nothing, strict=True):
            assert np.abs(array - zeros).sum() == pytest.approx(release.sensitivity)


@pytest.mark.parametrize("name", [name for name in RUNS if RUNS[name][0] is Sums])
def test_sums_alone_leave_the_clients_and_each_carries_noise(run_of, name):
    seen, result, clients = run_of(name)
    for round_, brought in seen:
        assert isinstance(round_, Sum)
        assert all(release is not None and release.noise_multiplier > 0 for release in round_.releases)
        assert all(len(array) < len(clients[0]) or round_.task == "votes" or array.ndim == 1 for array in brought)
    report = result.privacy
    assert report.covers_everything
    assert report.unprotected == []
    assert [message.release for message in report.releases] == [
        release for round_, _ in seen for release in round_.releases
    ]


def test_nothing_of_the_sums_has_an_entry_for_every_row():
    tasks = {"cluster_sums", "distance_counts", "entry_products", "votes"}
    assert all(sent.per == "client" for task in tasks for sent in CellsClient.answer_of(task).sends)
    sizes = []
    for n_rows in (40, 400):
        clients = clients_of(n_rows=n_rows)
        result = simulate(SPPFGCSums(3, n_prototypes=6), clients, seed=0)
        sizes.append(sorted({(row.task, row.bytes_up) for row in result.traffic}))
        assert {row.task for row in result.traffic} <= tasks | {"enrol"}
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", [name for name in RUNS if RUNS[name][0] is Graphs])
def test_report_of_graphs_says_that_they_are_not_covered(run_of, name):
    seen, result, _ = run_of(name)
    report = result.privacy
    assert not report.covers_everything
    assert {message.content for message in report.unprotected} == {
        "prototype of every row", "nearest rows of every row", "weights of the nearest rows of every row",
    }  # fmt: skip
    assert report.noise == "local"
    assert any("no noise covers either, so that nothing is promised for the run" in note for note in report.notes)
    assert "The run as a whole has NO such guarantee" in report.guarantee()
    gathered = next(round_ for round_, _ in seen if round_.task == "cell_prototypes")
    assert isinstance(gathered, Gather)
    assert [release is None for release in gathered.releases] == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": None, "max_l1_norm": None},
        {"epsilon": None, "solver": "clr"},
        {"calibration": "paper"},
        {"calibration": "paper", "prototypes": "gmm", "solver": "clr", "affinity": "kl", "assignment": "rows-of-s"},
    ],
)
def test_without_the_accountant_there_is_no_release_and_the_report_says_so(options):
    seen, result, _ = ran(Graphs, **options)
    report = result.privacy
    assert not any(release for round_, _ in seen for release in round_.releases)
    assert report.releases == []
    assert report.epsilon == np.inf
    assert not report.covers_everything
    assert report.guarantee() == "None. Nothing that depends on the rows is covered by a privacy mechanism."
    assert len(report.unprotected) == 6
    of_paper = [note for note in report.notes if "as the paper scales it, which proves nothing" in note]
    assert len(of_paper) == ("calibration" in options)


# What it costs


def epsilon_composed(releases, delta):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    for release in releases:
        accountant.compose(dp_accounting.LaplaceDpEvent(release.noise_multiplier))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
@pytest.mark.parametrize("n_prototypes", [3, 9])
@pytest.mark.parametrize(("epsilon", "delta", "n_lloyd_rounds"), [(0.4, 1e-6, 1), (3.0, 1e-3, 3)])
def test_epsilon_of_the_sums_is_at_most_the_one_asked_for(noise, n_prototypes, epsilon, delta, n_lloyd_rounds):
    options = {"noise": noise, "n_prototypes": n_prototypes, "n_lloyd_rounds": n_lloyd_rounds}
    seen, result, _ = ran(Sums, epsilon=epsilon, delta=delta, **options)
    report = result.privacy
    composed = epsilon_composed([release for round_, _ in seen for release in round_.releases], delta)
    assert report.epsilon == pytest.approx(composed, rel=2e-3)
    assert 0.8 * epsilon <= report.epsilon <= epsilon * ALLOWANCE
    assert (report.requested_epsilon, report.delta, report.unit, report.noise) == (epsilon, delta, "record", noise)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.4, 1e-6), (3.0, 1e-3), (10.0, 1e-6)])
@pytest.mark.parametrize("n_prototypes", [None, 1, 9])
def test_epsilon_of_the_prototypes_is_at_most_the_one_asked_for(epsilon, delta, n_prototypes):
    seen, result, _ = ran(Graphs, epsilon=epsilon, delta=delta, n_prototypes=n_prototypes)
    released_there = [release for round_, _ in seen for release in round_.releases if release]
    assert result.privacy.epsilon == pytest.approx(epsilon_composed(released_there, delta), rel=2e-3)
    assert 0.8 * epsilon <= result.privacy.epsilon <= epsilon * ALLOWANCE


@pytest.mark.parametrize(
    ("kind", "n_lloyd_rounds", "options"),
    [
        (Sums, 1, {"n_prototypes": 3}),
        (Sums, 3, {"n_prototypes": 3, "n_lloyd_rounds": 3}),
        (Sums, 3, {"n_prototypes": 12, "n_lloyd_rounds": 3, "epsilon": 500.0}),
        (Sums, 3, {"n_prototypes": 12, "epsilon": 500.0, "budget_split": (1, 2, 3, 4, 5)}),
        (Graphs, 1, {}),
        (Graphs, 1, {"budget_split": (5, 4, 3, 2, 1)}),
    ],
)
def test_each_round_spends_its_part_of_the_budget_and_no_more(kind, n_lloyd_rounds, options):
    default = (spp_fgc_sums if kind is Sums else spp_fgc).BUDGET_SPLIT
    split = options.get("budget_split", default)
    seen, *_ = ran(kind, **options)
    shares = CellNoise.shares(split, n_lloyd_rounds)
    origin, radius, directions, centers, last = calibrate(shares, options.get("epsilon", 5.0), 1e-6)
    spent = [sum(1 / release.noise_multiplier for release in round_.releases if release) for round_ in released(seen)]
    expected = [origin, radius, directions] + n_lloyd_rounds * [centers] + [last]
    np.testing.assert_allclose(spent, 1 / np.array(expected))
    assert (1 / last) / (1 / origin) == pytest.approx(split[4] / split[0])
    assert released(seen)[-1].task == (
        "cell_prototypes" if kind is Graphs else "votes" if options["n_prototypes"] == 12 else "cluster_sums"
    )


def test_radius_of_the_frame_is_what_bounds_the_later_sums(run_of):
    seen, *_ = run_of("refined")
    rounds = released(seen)
    radius = rounds[2].arguments["radius"]
    found = [release.sensitivity for round_ in rounds for release in round_.releases]
    assert found == pytest.approx([BOUND, 1.0, 1.0, radius**2, radius, 1.0, radius, 1.0])
    assert radius <= BOUND


# The noise itself


def noise_of(seen, clients, task):
    """What the sums of the rounds of a task have besides the clients' exact answers, by array."""
    found = []
    for round_, brought in seen:
        if round_.task == task:
            exact = [
                sum(arrays)
                for arrays in zip(
                    *([array for array, _ in reply_to(round_, rows)] for rows in clients), strict=True
                )
            ]  # fmt: skip
            found.append([one - other for one, other in zip(brought, exact, strict=True)])
    return found


@pytest.mark.parametrize(
    ("noise", "min_clients", "factor"),
    [("server", None, 1), ("clients", None, 1), ("clients", 2, 2), ("local", None, 4)],
)
def test_sums_have_noise_of_the_variance_that_is_declared(noise, min_clients, factor):
    scaled = {}
    for seed in range(25):
        options = {"noise": noise, "min_clients": min_clients, "n_prototypes": 9, "epsilon": 100.0}
        seen, _, clients = ran(Sums, seed=seed, **options)
        for task in ("cluster_sums", "distance_counts", "entry_products", "votes"):
            releases = [round_.releases for round_, _ in seen if round_.task == task]
            for arrays, own in zip(noise_of(seen, clients, task), releases, strict=True):
                for array, release in zip(arrays, own, strict=True):
                    scaled.setdefault(task, []).append(array.ravel() / release.standard_deviation)
    assert len(scaled) == 4
    by_task = {task: np.concatenate(draws) for task, draws in scaled.items()}
    assert np.var(np.concatenate(list(by_task.values()))) == pytest.approx(factor, rel=0.2)
    for found in by_task.values():
        assert np.var(found) == pytest.approx(factor, rel=0.6)
        assert abs(np.mean(found)) < 5 * np.sqrt(factor / len(found))


def test_every_reply_of_prototypes_has_all_of_its_noise():
    scaled = {}
    for seed in range(12):
        seen, _, clients = ran(Graphs, seed=seed, n_prototypes=5, epsilon=100.0)
        round_, replies = next((round_, brought) for round_, brought in seen if round_.task == "cell_prototypes")
        for reply, rows in zip(replies, clients, strict=True):
            for index, (exact, release) in enumerate(reply_to(round_, rows)):
                noise = (reply.arrays[3 + index] - exact).ravel()
                scaled.setdefault(index, []).append(noise / release.standard_deviation)
    for draws in scaled.values():
        assert np.var(np.concatenate(draws)) == pytest.approx(1.0, rel=0.3)


def test_parts_of_the_prototypes_release_are_those_that_are_stated(run_of):
    seen, *_ = run_of("graphs")
    sums, products, counts = released(seen)[-1].releases[3:]
    parts = np.array([1 / counts.noise_multiplier, 1 / sums.noise_multiplier, 1 / products.noise_multiplier])
    np.testing.assert_allclose(parts / parts.sum(), spp_fgc.PROTOTYPE_PARTS)
    assert sum(spp_fgc.PROTOTYPE_PARTS) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [Sums, Graphs])
def test_noise_does_not_hang_on_random_state(kind):
    def first_noise(random_state, seed):
        seen, _, clients = ran(kind, random_state=random_state, seed=seed)
        return noise_of(seen, clients, "cluster_sums")[0][0]

    np.testing.assert_allclose(first_noise(0, 3), first_noise(1, 3), atol=1e-9)  # the seed of the experiment alone
    assert np.abs(first_noise(0, 3) - first_noise(0, 4)).min() > 1e-6
    assert np.abs(first_noise(0, None) - first_noise(0, None)).min() > 1e-6


@pytest.mark.parametrize("calibration", ["accountant", "paper"])
def test_noise_of_the_prototypes_is_not_repeated_where_no_seed_is_given(calibration):
    def prototypes():
        seen, *_ = ran(Graphs, seed=None, random_state=0, calibration=calibration)
        task = "cell_prototypes" if calibration == "accountant" else "structural_graph"
        return next(brought for round_, brought in seen if round_.task == task)[0].arrays[3]

    one, other = prototypes(), prototypes()
    assert one.shape != other.shape or np.abs(one - other).min() > 0


@pytest.mark.parametrize("n_clients", [4, 16])
@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_that_is_expected_in_a_sum_is_that_of_the_place(noise, n_clients):
    found = []
    clients = np.array_split(np.concatenate(clients_of()), n_clients)

    class Strategy(SPPFGCSums):
        def _calibrated(self):
            found.append(super()._calibrated())
            return found[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulate(Strategy(3, epsilon=5.0, max_l1_norm=BOUND, noise=noise), clients, seed=0)
    assert found[-1].in_sum == pytest.approx(np.sqrt(n_clients) if noise == "local" else 1.0)
