"""What a run announces of its noise before the first release holds to its end, so that no honest run is refused."""

import numpy as np
import pandas as pd
import pytest
from hostile import audit, run, site

import flower_fedclust as fc

JOBS = [f"job {index}" for index in range(25)]
SCHEMA = fc.Schema.of(
    {
        "columns": {
            "age": {"kind": "number", "bounds": [0, 100], "scale": "standard"},
            "job": {"kind": "category", "categories": JOBS},
        }
    }
)
GENEROUS = {
    "epsilon_per_run": 60.0,
    "epsilon": 600.0,
    "delta": 1e-3,
    "least_noise_multiplier": 0.01,
    "row_count": True,
    "fewest_rows": 10,
    "relations": ("add-or-remove", "replace"),
}


def people(n_rows, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.uniform(20, 80, n_rows), "job": rng.choice(JOBS, n_rows)})


def sites(folder, *, n_sites=3, schema=SCHEMA, n_columns=4):
    rng = np.random.default_rng(0)
    names = ["north", "south", "west", "east", "middle"][:n_sites]
    rows = [
        people(60, seed) if schema else 0.3 * rng.normal(size=(60, n_columns))
        for seed in range(n_sites)
    ]
    pairs = zip(names, rows, strict=True)
    return [
        site(folder / name, name=name, rows=table, schema=schema, **GENEROUS)
        for name, table in pairs
    ]


def announced(one):
    """The digests of the plans that a site was sent with what it answered."""
    return {entry["plan"] for entry in one.ledger.read() if entry["arrays"]}


def check_honest(strategy, own):
    """Every site has answered every round of a run, with one plan."""
    assert {line["event"] for one in own for line in audit(one)} == {"answered"}
    assert all(len(announced(one)) == 1 for one in own)
    assert strategy.report.composed_epsilon <= strategy.epsilon == strategy.report.epsilon


def feddp(**more):
    # Two columns are no more than clusters, and 26 prepared ones are: step 1 is needed only then.
    server_data = people(40, 9)
    return fc.FedDPKMeans(
        3, epsilon=50.0, noise="local", server_data=server_data, random_state=0, **more
    )


#: What is announced depends on the kinds of rounds; `make check` has one more strategy of each kind.
PREPARED = {
    "feddp described": (feddp(n_rounds=1), True),
    "dp-fedc": (fc.DPFedC(3, epsilon=50.0, noise="local", n_rounds=4, random_state=0), False),
}
MORE = {
    "feddp": (feddp(), False),
    "fed-tsne-sums": (
        fc.FedTSNESums(
            3, epsilon=50.0, noise="local", n_landmarks=6, perplexity=2.0, random_state=0
        ),
        True,
    ),
    "private-kmeans described": (
        fc.PrivateKMeans((2, 4), epsilon=50.0, noise="local", random_state=0),
        True,
    ),
}


@pytest.mark.parametrize(
    ("strategy", "describe"),
    [
        *(pytest.param(*case, id=name) for name, case in PREPARED.items()),
        *(pytest.param(*case, id=name, marks=pytest.mark.long) for name, case in MORE.items()),
    ],
)
def test_no_site_refuses_what_it_was_announced_where_rows_are_prepared(
    tmp_path, strategy, describe
):
    own = sites(tmp_path)
    strategy = fc.with_schema(strategy, SCHEMA, describe=describe)
    run(strategy, own)
    check_honest(strategy, own)


@pytest.mark.parametrize("made", [fc.DPFedC], ids=lambda made: made.__name__)
def test_no_site_refuses_what_it_was_announced_where_sites_are_drawn(tmp_path, made):
    strategy = made(
        3, epsilon=50.0, max_norm=1.0, noise="local", n_rounds=3, fraction_fit=0.5, random_state=0
    )
    for number, n_sites in enumerate((4, 5, 3)):  # of one run the next one takes over nothing
        own = sites(tmp_path / str(number), n_sites=n_sites, schema=None)
        run(strategy, own)
        check_honest(strategy, own)
