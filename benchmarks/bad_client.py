"""One bad client of four: every fault in every strategy, and how the run ends.

    python benchmarks/bad_client.py [--strategies a,b] [--faults x,y]

A case ends well in one of three ways. "survived": the run ends, names only the bad client, and finds what it finds
without that client. "ended": one sentence names only the bad client, and the privacy report lists what had left.
"harmless": the message could be an honest one, and it moves the result no more than one client's rows can.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters

from flower_fedclust.checking import WatchedRun, watched_run
from flower_fedclust.engine import ClientData, ProtocolError
from flower_fedclust.engine.wire import EXPONENTS, decode, encode, with_hash
from flower_fedclust.registry import find

Arrays = list[np.ndarray]
Answer = Callable[[FitRes], FitRes]

BAD = "bad"
PUBLIC = np.random.default_rng(0).normal(size=(12, 3))

#: The strategies, each with what makes its run short.
STRATEGIES: dict[str, dict[str, Any]] = {
    "dp-fedc": {"n_rounds": 2},
    "feddp-kmeans": {"server_data": PUBLIC, "epsilon": None, "n_rounds": 1},
    "fedsc": {"n_rounds": 2, "n_atoms": 4},
    "fedsc-sums": {},
    "fed-speclust-sums": {"n_rounds": 3},
    "pe-means": {"max_norm": 5.0, "epsilon": 8.0, "noise": "clients", "min_clients": 3},
    "private-kmeans": {"max_norm": 5.0, "epsilon": None},
    "spp-fgc": {},
    "spp-fgc-sums": {},
    "coreset-k-median": {"coreset_size": 10},
    "dsc": {},
    "fed-ssc": {},
    "federated-kmeans": {"n_rounds": 2},
    "dp-lloyd-server-kmeans++": {"server_data": PUBLIC, "epsilon": None},
    "ffcm": {"n_rounds": 2},
    "k-fed": {},
    "k-means-parallel": {},
}


def tables() -> dict[str, ClientData]:
    """Return three blobs at four clients with at least 40 rows."""
    rng = np.random.default_rng(1)
    centers = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    sizes = {"north": 40, BAD: 44, "south": 48, "west": 52}
    return {
        name: ClientData(
            centers[np.arange(size) % 3] + 0.2 * rng.normal(size=(size, 3)),
            np.arange(size) % 3,
            owner=f"client {name}",
        )
        for name, size in sizes.items()
    }


def arrays_changed(change: Callable[[np.ndarray], np.ndarray]) -> Answer:
    """Return the fault that changes every array."""
    return lambda res: with_arrays(res, [change(array) for array in decode(res.parameters)])


def with_arrays(res: FitRes, arrays: Arrays) -> FitRes:
    return with_hash(replace(res, parameters=encode(arrays)))


def as_floats(value: float) -> Answer:
    """Return the fault that sends numbers as floats, which have no unit."""

    def answer(res: FitRes) -> FitRes:
        sent = with_arrays(res, [np.full(array.shape, value) for array in decode(res.parameters)])
        return with_hash(
            replace(
                sent,
                metrics={name: found for name, found in res.metrics.items() if name != EXPONENTS},
            )
        )

    return answer


def times(factor: float) -> Answer:
    def change(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind in "iu":  # avoid wrapping around
            limit = float(2**62)
            return np.clip(array.astype(float) * factor, -limit, limit).astype(array.dtype)
        return array * factor

    return arrays_changed(change)


def other_units(change: Callable[[Any], Any]) -> Answer:
    """Return the fault that states other units."""

    def answer(res: FitRes) -> FitRes:
        given = json.loads(str(res.metrics.get(EXPONENTS, "null")))
        changed = None if given is None else [None if one is None else change(one) for one in given]
        return with_hash(replace(res, metrics=res.metrics | {EXPONENTS: json.dumps(changed)}))

    return answer


def bytes_changed(change: Callable[[bytes], bytes]) -> Answer:
    return lambda res: replace(
        res,
        parameters=Parameters(
            [change(tensor) for tensor in res.parameters.tensors], res.parameters.tensor_type
        ),
    )


def silent(_: FitRes) -> FitRes:
    raise TimeoutError("no answer")


def metrics_changed(**changes: Any) -> Answer:
    """Return the fault that sends other metadata with its arrays; None sends none."""

    def answer(res: FitRes) -> FitRes:
        metrics = {
            name: found for name, found in (res.metrics | changes).items() if found is not None
        }
        return with_hash(replace(res, metrics=metrics))

    return answer


#: What the bad client does with the answers to the rounds, by name.
FAULTS: dict[str, Answer] = {
    "an entry less": arrays_changed(
        lambda array: array[..., :-1] if array.ndim else array[None][:0]
    ),
    "an entry more": arrays_changed(
        lambda array: (
            np.concatenate([array, array[..., :1]], axis=-1)
            if array.ndim
            else array[None].repeat(2)
        )
    ),
    "an extra dimension": arrays_changed(lambda array: array[..., None]),
    "a dimension less": arrays_changed(
        lambda array: array.ravel() if array.ndim != 1 else array[:1].reshape(())
    ),
    "0 rows": arrays_changed(lambda array: array[:0] if array.ndim else array[None][:0]),
    "half of the rows": arrays_changed(
        lambda array: array[: len(array) // 2] if array.ndim else array
    ),
    "booleans": arrays_changed(lambda array: array.astype(bool)),
    "text": arrays_changed(lambda array: array.astype(str)),
    "complex numbers": arrays_changed(lambda array: array + 1j),
    "floats of 32 bits": arrays_changed(lambda array: array.astype(np.float32)),
    "floats for integers": arrays_changed(lambda array: array.astype(float)),
    "integers of 8 bits": arrays_changed(lambda array: array.astype(np.int8)),
    "a coarser unit": other_units(lambda exponent: exponent + 20),
    "no unit": other_units(lambda _: None),
    "a unit that is none": other_units(lambda _: 1e9),
    "NaN": as_floats(np.nan),
    "infinity": as_floats(np.inf),
    "1e300": as_floats(1e300),
    "1.7e308": as_floats(1.7e308),
    "the largest integers": arrays_changed(
        lambda array: np.full(array.shape, 2**63 - 1 if array.dtype.kind == "i" else 1e19).astype(
            array.dtype
        )
    ),
    "a million times too large": times(1e6),
    "minus a million times that": times(-1e6),
    "negative numbers": times(-1.0),
    "zeros": times(0.0),
    "an array less": lambda res: with_arrays(res, decode(res.parameters)[:-1]),
    "an array more": lambda res: with_arrays(res, [*decode(res.parameters), np.zeros(3)]),
    "arrays in another order": lambda res: with_arrays(res, decode(res.parameters)[::-1]),
    "no array": lambda res: with_arrays(res, []),
    "bytes that are no array": bytes_changed(lambda _: b"rubbish"),
    "bytes cut off": bytes_changed(lambda tensor: tensor[: len(tensor) // 2]),
    "nothing": silent,
    "a long excuse": metrics_changed(failure="no\n" * 50_000),
}

#: What it does when it enrols.
ENROLMENTS: dict[str, Answer] = {
    "another's name": metrics_changed(client="north"),
    "no name": metrics_changed(client=None),
    "no columns": metrics_changed(columns=None),
    "columns that are none": metrics_changed(columns="{]"),
}


@lru_cache
def run_of(strategy: str, fault: str | None) -> WatchedRun | Exception:
    """Run a strategy with a fault; None is an honest run, and "absent" one without the bad client."""
    entry = find(strategy)
    made = entry.strategy(n_clusters=3, **(entry.fixed | STRATEGIES[strategy]), random_state=3)
    data = tables()
    if fault == "absent":
        del data[BAD]

    def tamper(number: int, honest: Callable[[], FitRes]) -> FitRes:
        fault_here = (ENROLMENTS if number == 1 else FAULTS).get(str(fault))
        return honest() if fault_here is None else fault_here(honest())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = watched_run(made, data, seed=3, tamper={BAD: tamper})
            run.result  # noqa: B018 - the metrics can fail as well
        except Exception as error:
            return error
    return run


def agreement_of(run: WatchedRun) -> float:
    """Return the adjusted Rand index of the honest clients' clusters and their true classes."""
    from sklearn.metrics import adjusted_rand_score

    found = dict(zip(run.result.names, run.result.labels_of_clients, strict=True))
    honest = [name for name in run.data if name != BAD and len(found[name])]
    if not honest:
        return 0.0
    return float(
        adjusted_rand_score(
            np.concatenate([run.data[name].labels for name in honest]),
            np.concatenate([found[name] for name in honest]),
        )
    )


def ending_of(strategy: str, fault: str) -> tuple[str, str]:
    """Return how a case ends, in one word, and its message."""
    found = run_of(strategy, fault)
    known = {BAD, "9001"}  # its node id, used if it gave no name
    innocent = {"north", "south", "west"} if fault != "another's name" else {"south", "west"}
    if isinstance(found, Exception):
        said = f"{type(found).__name__}: {found}"
        if not isinstance(found, (ProtocolError, ValueError)) or "\n" in str(found):
            return "foreign error", said
        named = any(f"client {name}" in said for name in known) or "'north'" in said
        blamed = [name for name in innocent if f"client {name} " in said]
        if blamed:
            return "innocent blamed", said
        if not named:
            return "nobody named", said
        return ("ended" if hasattr(found, "privacy_report") else "no report"), said
    failures = found.strategy.failures
    named_clients = {failure.client for failure in failures}
    said = failures[0].reason if failures else ""
    if named_clients & innocent:
        return "innocent blamed", next(
            failure.reason for failure in failures if failure.client in innocent
        )
    absent = run_of(strategy, "absent")
    assert isinstance(absent, WatchedRun), absent
    arrays = [array for array in found.result.model.to_arrays() if array.dtype.kind == "f"]
    sound = (
        all(np.isfinite(array).all() for array in arrays)
        and agreement_of(found) >= agreement_of(absent) - 0.2
    )
    if named_clients:
        return ("survived" if sound else "named, ruined"), said
    return ("harmless" if sound else "ruined in silence"), said


GOOD = ("survived", "ended", "harmless")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--faults", default=",".join([*FAULTS, *ENROLMENTS]))
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    strategies, faults = given.strategies.split(","), given.faults.split(",")
    total: Counter[str] = Counter()
    for fault in faults:
        endings = {strategy: ending_of(strategy, fault) for strategy in strategies}
        counts = Counter(ending for ending, _ in endings.values())
        total += counts
        print(
            f"| {fault} | "
            + ", ".join(f"{ending} {count}" for ending, count in counts.most_common())
            + " |"
        )
        if given.verbose:
            for strategy, (ending, said) in endings.items():
                if ending not in GOOD or given.verbose:
                    print(f"    {strategy}: {ending}: {said[:300]}")
        sys.stdout.flush()
    print(
        "| all | " + ", ".join(f"{ending} {count}" for ending, count in total.most_common()) + " |"
    )


if __name__ == "__main__":
    main()
