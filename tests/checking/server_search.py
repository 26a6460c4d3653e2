"""Search for what a server decides before the noise: two runs over neighbors that release the same numbers.

    python tests/checking/server_search.py [--quick] [STRATEGY ...]

The second run draws the noise that turns its sums into the first run's released sums. Such noise exists, so whoever
sees the server's output cannot tell the runs apart by what was released. Everything else that the server keeps, prints,
sends or decides must then be the same: messages, rounds, clients left out, failures, doubts, report, result, log, and
all that its objects hold. Whatever differs was decided on a value before its noise.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import logging
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from flower_fedclust.checking.runs import SEED, Subject, watched_run
from flower_fedclust.engine import ClientData
from flower_fedclust.privacy.noise import add_noise
from flower_fedclust.results.result import result_of

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "strategies")]

#: Where a rule of the code changes: one row, four fifths of all rows, blocks of noise and of rows, clients that are too
#: large for a stack, and the largest ratio of two replies.
SIZES = (1, 2, 11, 12, 13, 2047, 2048, 4095, 4096, 65_535, 65_536)

#: What a run holds that no server does, which are the sites themselves; how long anything took; and how many rows a
#: client can have by its own counts, for checks that no honest client can fail. What is done with it would be seen.
OUTSIDE = {"on_received", "proxy", "seconds", "_n_rows"}

#: Names in the order in which the clients' replies are added up; the last has the row.
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Pair:
    """Tables of all clients, and another table of the last; whoever sees the releases must not tell which it has."""

    description: str
    tables: tuple[np.ndarray, ...]
    other: np.ndarray


def pairs(strategy, relation, n_columns, sizes=SIZES):
    """Yield hard pairs for a strategy's unit and relation."""
    n_columns = strategy.expected_columns or n_columns
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(64, n_columns))
    near = 0.3 * directions / np.linalg.norm(directions, axis=1)[:, None]
    far = np.full((1, n_columns), 1e9)

    def pair(what, others, rows, row):
        if strategy.privacy_unit == "client":
            return Pair(what, (*others, rows), np.vstack([rows, row, row])[::-1])
        if relation == "replace":
            return Pair(
                f"{what}, replaced", (*others, np.vstack([rows, row])), np.vstack([rows, -row])
            )
        return Pair(what, (*others, rows), np.vstack([rows, row]))

    for size in sizes:
        rows = np.resize(near, (size, n_columns))
        ones = [near[index : index + 1] for index in (5, 6, 7)]
        yield pair(f"a far row beside {size} rows, the others have one", ones, rows, far)
        if size > 13:
            continue
        yield pair(
            f"a row beside {size} rows, the others have four",
            [near[i : i + 4] for i in (0, 4, 8)],
            rows,
            near[:1],
        )
        tiny = [1e-6 * one for one in ones]
        yield pair(
            f"a far row beside {size} rows near zero, as the others are", tiny, 1e-6 * rows, far
        )
        zeros = [np.zeros((2, n_columns))] * 3
        yield pair(
            f"a far row beside {size} rows of zeros", zeros, np.zeros((size, n_columns)), -far
        )
        large = np.full((1, n_columns), np.finfo(float).max)
        yield pair(f"the largest float beside {size} rows", ones, rows, large)


class Replay:
    """Noise that gives the second run what the first has released."""

    def __init__(self):
        self.released, self.place = [], None
        self.unlike = []

    def __call__(self, arrays, releases, source, **options):
        found = add_noise(arrays, releases, source, **options)
        if self.place is None:
            self.released.append(found)
            return found
        self.place += 1
        if self.place > len(self.released) or shapes(self.released[self.place - 1]) != shapes(
            found
        ):
            self.unlike.append(f"the noise of place {self.place} has another shape or unit")
            return found
        return self.released[self.place - 1]


def shapes(arrays):
    """Return what must be alike in two releases."""
    return [(getattr(one, "exponent", None), getattr(one, "integers", one).shape) for one in arrays]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.name}: {record.getMessage()}")


def seen(strategy, tables, noise):
    """Run, and return all that the server has done, by what it is."""
    strategy = copy.copy(strategy)
    strategy.run_id = "run"
    data = {
        name: ClientData(rows, owner=f"client {name}")
        for name, rows in zip(NAMES, tables, strict=True)
    }
    lines, said = Lines(), io.StringIO()
    loggers = [logging.getLogger(name) for name in ("flower_fedclust", "flwr", "py.warnings")]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
        logger.setLevel(logging.DEBUG)
    try:
        with (
            patch("flower_fedclust.engine.run.add_noise", noise),
            patch("flower_fedclust.engine.client.add_noise", noise),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            run = watched_run(strategy, data, seed=SEED, keeps_error=True)
            facts = facts_of(run)
    finally:
        for logger, level in before:
            logger.removeHandler(lines)
            logger.setLevel(level)
    texts = [
        str(one.message)
        for one in warned
        if "flower_fedclust" in one.filename or one.category is RuntimeWarning
    ]
    facts["the log"] = [line for line in lines.lines if "finished in" not in line]
    return facts | {"what is printed": said.getvalue(), "the warnings": texts}


def facts_of(run):
    """Return what a server has decided, said and kept in a run."""
    strategy = run.strategy
    facts = {
        "the error that ends the run": repr(run.error),
        "the rounds": [(number, round_.task) for number, round_ in run.rounds.items()],
        "the messages": [
            (one.round, one.client, dict(one.ins.config), one.ins.parameters.tensors)
            for one in run.exchanges
        ],
        "the failures": [str(one) for one in strategy.failures],
        "the traffic": [str(one) for one in strategy.traffic],
        "the report": str(strategy.report),
        "what a protocol receives": state_of(run.received),
        "what the server keeps": state_of(strategy),
    }
    if strategy.is_finished and run.error is None:
        result = result_of(strategy, {}, 0.0)
        facts["the model"] = [array.tobytes() for array in result.model.to_arrays()]
        facts["the doubts"] = [str(one) for one in result.doubts]
        facts["the result"] = state_of(result)
    return facts


def state_of(value, path="", found=None, known=None):
    """Return every number and text that an object holds, by where it is."""
    found, known = {} if found is None else found, {} if known is None else known
    if isinstance(value, (str, int, float, bool, bytes, type(None))):
        found[path] = repr(value)
    elif isinstance(value, np.ndarray):
        found[path] = (value.shape, value.dtype.str, value.tobytes())
    elif isinstance(value, np.generic):
        found[path] = repr(value)
    elif callable(value) and not hasattr(value, "__dataclass_fields__"):
        found[path] = getattr(value, "__qualname__", type(value).__name__)
    elif id(value) in known:
        found[path] = f"the same as {known[id(value)][0]}"
    else:
        known[id(value)] = path, value  # kept, so that its id stays its own
        if isinstance(value, dict):
            parts = [(repr(key), one) for key, one in value.items()]
        elif isinstance(value, (list, tuple)):
            parts = [(str(index), one) for index, one in enumerate(value)]
        elif isinstance(value, (set, frozenset)):
            parts = [(str(index), one) for index, one in enumerate(sorted(value, key=repr))]
        elif isinstance(value, np.random.Generator):
            parts = [("state", value.bit_generator.state)]
        else:
            parts = list(getattr(value, "__dict__", {}).items())
            parts += [
                (name, getattr(value, name, None)) for name in getattr(type(value), "__slots__", ())
            ]
        found[path] = f"{type(value).__name__} of {len(parts)}"
        for name, one in parts:
            if name not in OUTSIDE:
                state_of(one, f"{path}.{name}", found, known)
    return found


def difference(strategy, pair):
    """Return what differs between the runs of a pair."""
    noise = Replay()
    first = seen(strategy, pair.tables, noise)
    noise.place = 0
    second = seen(strategy, (*pair.tables[:-1], pair.other), noise)
    found = [*noise.unlike]
    for what in first.keys() | second.keys():
        one, other = first.get(what), second.get(what)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            places = [
                place for place in one.keys() | other.keys() if one.get(place) != other.get(place)
            ]
            found.append(f"{what}: {', '.join(sorted(places, key=len)[:3])}")
        elif isinstance(one, list) and isinstance(other, list):
            apart = [str(two)[:160] for two in one if two not in other] + [
                str(two)[:160] for two in other if two not in one
            ]
            found.append(f"{what}: {' | '.join(apart[:2]) or 'the order'}")
        else:
            found.append(f"{what}: {str(one)[:160]} | {str(other)[:160]}")
    return sorted(found)


def search(strategy, n_columns=4, sizes=SIZES):
    """Yield what differs, for each pair of a strategy; nothing if noise does not cover all that leaves the clients."""
    run = Subject(strategy).run
    relations = {release.relation for _, _, release in run.releases}
    if not relations or not run.strategy.report.covers_everything:
        return
    for pair in pairs(
        strategy, "replace" if "replace" in relations else "add-or-remove", n_columns, sizes
    ):
        yield pair.description, difference(strategy, pair)


def private_cases():
    """Return the private strategies of the registry by name, with each place of the noise and each unit."""
    from test_strategies_every import cases

    return {name: one for name, one in cases().items() if one.epsilon is not None}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("strategies", nargs="*")
    parser.add_argument("--quick", action="store_true", help="tables of a few rows only")
    given = parser.parse_args()
    n_wrong = 0
    known = private_cases()
    for name in given.strategies or known:
        begin = time.monotonic()
        compared = list(search(known[name], sizes=SIZES[:5] if given.quick else SIZES))
        wrong = [f"{what}: {one}" for what, found in compared for one in found]
        said = (
            f"{len(compared)} pairs"
            if compared
            else "not compared, because noise does not cover everything"
        )
        print(
            f"{name}: {said}, {len(wrong)} differences, {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        for one in wrong[:6]:
            print(f"    {one[:400]}", flush=True)
        n_wrong += bool(wrong)
    raise SystemExit(int(n_wrong > 0))


if __name__ == "__main__":
    main()
