"""One client of six sends anything, from any round on: the run goes on without it, and the report names it."""

import sys
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hostile_clients import served
from sklearn.base import clone

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies"))

import test_strategies_every as every
from tested import entries

from flower_fedclust.engine import ClientData, ProtocolError
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.privacy.report import PrivacyReport

BAD = "c3"


@lru_cache
def one_of_each_client():
    """Return a short strategy for each type of client, by name."""
    found = {}
    for name, entry in entries().items():
        if entry.strategy.client_type not in {type(one).client_type for one in found.values()}:
            found[name] = entry.strategy(**entry.fixed, **every.options_of(entry))
            with suppress(ValueError):
                evaluated = clone(found[name]).set_params(federated_evaluation=True)
                evaluated.check_parameters()
                found[name] = evaluated
    return found


def tables():
    rng = np.random.default_rng(1)
    centers = 3 * np.eye(4)[:3]
    return {
        f"c{index}": ClientData(
            centers[np.arange(30) % 3] + 0.2 * rng.normal(size=(30, 4)),
            np.arange(30) % 3,
            owner=f"client c{index}",
        )
        for index in range(6)
    }


def check(name, seed):
    strategy = one_of_each_client()[name]
    rng = np.random.default_rng(seed)
    start = int(rng.integers(1, strategy.num_rounds + 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = served(strategy, tables(), BAD, seed=seed, start=start)
        except (ProtocolError, DataError) as error:
            ended = error
        except Exception as error:
            raise AssertionError(
                f"{name}, seed {seed}, from round {start}: {type(error).__name__}: {error}"
            ) from error
        else:
            ended = None
    if ended is not None:
        assert BAD in str(ended), f"{name}, seed {seed}: {ended}"
        assert isinstance(ended.privacy_report, PrivacyReport)
        return
    run = found.strategy
    assert run.is_finished
    assert all(
        np.isfinite(array).all()
        for array in run.outcome.model.to_arrays()
        if array.dtype.kind == "f"
    )
    assert all(np.isfinite(score) for score in (run.evaluation or {}).values())
    assert not {failure.client for failure in run.failures} & (tables().keys() - {BAD}), (
        run.failures
    )
    assert all(failure.reason.isprintable() for failure in run.failures)
    assert all(len(failure.reason) < 1500 for failure in run.failures)
    assert found.incomplete <= {failure.round for failure in run.failures}


@pytest.mark.parametrize(
    "name", [name for name in one_of_each_client() if name not in ("ppfc-gan", "spp-fgc-plus")]
)
def test_a_client_that_sends_anything_is_left_out_by_name(name):
    check(name, 0)


#: How many runs there are of each, in a minute or two; fewer of what takes long.
N_RUNS = {"ppfc-gan": 5, "fed-ssc": 10, "spp-fgc-plus": 15, "fed-tsne": 20, "fed-tsne-sums": 20}


@pytest.mark.long
@pytest.mark.parametrize("name", list(one_of_each_client()))
def test_a_client_that_sends_anything_is_left_out_by_name_whatever_it_is(name):
    for seed in range(N_RUNS.get(name, 100)):
        check(name, seed)
