"""Servers that send a careful site anything at all, over two tables that differ by one row.

    python tests/site/random_servers.py [--messages 10000] [--rows 400] [--seed 0] [STRATEGY ...]
    python tests/site/random_servers.py --messages 500 --at "65,536 rows" [STRATEGY ...]

Each message goes to two sites, whose noise is the same and whose tables are neighbors. What their answers differ by is
then what one row has moved. Divided by the noise that was added it must not be more than the ledger accounts for,
whatever frame, view or finish the server has chosen. What is refused, and what costs nothing, must be the same at both.
Messages are those of honest runs, changed at random, and their questions in another form: of pure garbage nearly all is
refused at once.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import hostile
import numpy as np
from flwr.common import Parameters

from flower_fedclust.engine import ProtocolError
from flower_fedclust.engine.by_row import ByRow, Finish
from flower_fedclust.engine.fields import read_question
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.wire import decode, encode, received_arrays
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.accounting import Plan, Share
from flower_fedclust.privacy.noise import SeededNoise, add_noise
from flower_fedclust.registry import find, make_strategy
from flower_fedclust.site.sample import sampled
from flower_fedclust.strategies.common.tables import with_schema
from flower_fedclust.tables.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
FAMILIES = import_module("deployed").FAMILIES
entries = import_module("tested").entries

N_ROWS, N_COLUMNS = 60, 3


@dataclass(frozen=True)
class Size:
    """Tables, messages and ids on both sides of a limit in the code."""

    rows: tuple[int, ...] = (N_ROWS,)  #: A table has one of these numbers of rows.
    #: Arrays of a message, or the answers to them, have about so many entries.
    entries: tuple[int, ...] = ()
    #: Rows have ids from here on, and a site takes part with a sample of them.
    first_id: int | None = None


#: Blocks of noise, rows of a stack and of an estimate, the ratio of two replies, and the integers that a float64 holds.
LIMITS = {
    "65,536 rows": Size(rows=(65_535, 65_536, 65_537)),
    "4,096 rows": Size(rows=(4095, 4096, 4097)),
    "2,048 entries": Size(entries=(2047, 2048, 2049)),
    "2^53": Size(rows=(300,), first_id=2**53 - 150),
    "2^62": Size(rows=(300,), first_id=2**62),
}

SCHEMA = Schema.of(
    {
        "columns": {
            "a": {"kind": "number", "bounds": [-9, 9]},
            "b": {"kind": "number", "gaps": "mean"},
            "c": {"kind": "number", "scale": "rank"},
        }
    }
)

#: What a site lets out: as its operator left it, with a budget that does not end, and with its number of rows.
ENDLESS = {"epsilon_per_run": 1e7, "epsilon": 1e9, "delta": 0.5}
REPLACED = {"relations": hostile.BOTH}
POLICIES = [{}, ENDLESS, ENDLESS | REPLACED, ENDLESS | REPLACED | {"row_count": True}]
EVERYTHING = (
    ENDLESS | REPLACED | {"unprotected": ["sums", "centers", "codes", "rows"], "row_count": True}
)

#: Fewer steps than a site allows by default, as a million take a minute.
QUICK = {"most_steps": 10_000}

#: Seconds of the processor for one message to two sites, megabytes of memory and of a site's folder.
MOST_SECONDS, MOST_MEMORY, MOST_DISK = 60.0, 3000.0, 100.0

#: What rounding may add to a distance.
ROUNDING = 1 + 1e-6

NUMBERS = [
    0,
    1,
    2,
    3,
    -1,
    7,
    60,
    61,
    0.5,
    1e-9,
    1e9,
    5e-324,
    1e-300,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
]
NUMBERS += [
    2**31,
    2**63,
    10**9,
    10**30,
    -(2**40),
    True,
    False,
    "",
    "x",
    "k-means",
    "landmarks",
    None,
    [1],
    {},
]


@dataclass
class Found:
    """What came of the messages to one strategy."""

    outcomes: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)  #: Answered with noise.
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0  #: Of the slowest message.
    moved: float = 0.0  #: The largest change, over what the ledger accounts for.


def tables(rng, n_rows=N_ROWS):
    """Return two tables that differ by a row, how, and where: rows in a ball, far out, alike, or half way between."""
    rows = rng.normal(size=(n_rows, N_COLUMNS)) * rng.choice([0.5, 1.0, 4.0])
    if rng.random() < 0.2:
        rows = np.round(rows)
    row = rng.choice([0.0, 1.0, 3.0, 1e3, 1e12, 1e300, -1e300, 5e-324], size=N_COLUMNS)
    row = rows[0] if rng.random() < 0.2 else row * rng.choice([1.0, -1.0, rng.normal()])
    place, kind = (
        int(rng.choice([0, n_rows // 2, n_rows - 1])),
        str(rng.choice(["added", "removed", "replaced"])),
    )
    other = {
        "added": lambda: np.insert(rows, place, row, axis=0),
        "removed": lambda: np.delete(rows, place, axis=0),
        "replaced": lambda: np.vstack([rows[:place], row[None, :], rows[place + 1 :]]),
    }[kind]()
    return rows, other, kind, place


def ids_of(first, n_rows, kind, place):
    """Return the ids of the rows of both tables: a row that comes has an id of its own."""
    ids = [first + index for index in range(n_rows)]
    new = first + n_rows
    others = {
        "added": lambda: [*ids[:place], new, *ids[place:]],
        "removed": lambda: [*ids[:place], *ids[place + 1 :]],
        "replaced": lambda: ids,
    }
    return ids, others[kind]()


#: The parts of plans that servers make up, with the sample of each.
PARTS = {
    **{f"gaussian {index}": None for index in range(4)},
    "laplace 0": None,
    "laplace 1": None,
    "sampled": (5, 50),
}


@cache
def own_plan(relation, unit, *, is_small):
    """Return a plan of parts for any answer, for a careful policy or for one without end."""
    shares, multipliers = {}, {}
    for name, sample in PARTS.items():
        if sample is None or relation == "replace":
            shares[name] = Share(
                name.split()[0] if sample is None else "gaussian", 1.0, 25, relation, sample
            )
            multipliers[name] = (
                (1000.0 if name.startswith("laplace") else 80.0) if is_small else 0.6
            )
    return Plan(1000.0, 1e-6, "local", unit, shares, multipliers).to_json()


@cache
def recorded(name, is_table):
    """Return the messages that one site gets in an honest run, with and without a schema."""
    family, rng, heard = FAMILIES.get(name), np.random.default_rng(1), []
    given = {"n_clusters": 3} | (tomllib.loads(family.parameters) if family else {})
    given |= {"epsilon": family.epsilon} if family and family.epsilon else {}
    if family and family.reads_public_rows:
        given["server_data"] = rng.normal(size=(30, N_COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        sites = [
            hostile.site(
                Path(folder) / str(index),
                name=str(index),
                rows=np.abs(rng.normal(size=(400, N_COLUMNS))) + 3 * (np.arange(400) % 3)[:, None],
                schema=SCHEMA if is_table else None,
                **EVERYTHING | {"least_noise_multiplier": 0.01},
            )
            for index in range(3)
        ]
        try:
            strategy = make_strategy(name, **given)
            hostile.run(
                with_schema(strategy, SCHEMA, describe=True) if is_table else strategy,
                sites,
                heard=heard,
            )
        except (ValueError, ProtocolError, RuntimeError):
            # Of a strategy that takes no schema, or fails on these rows: what was heard until then is enough.
            pass
    return tuple(heard)


class Pair:
    """Two sites whose tables are neighbors, as one server knows them."""

    def __init__(self, folder, rng, strategy, is_table, found, size=Size()):
        self.folder, self.rng, self.found, self.strategy, self.size = (
            folder,
            rng,
            found,
            strategy,
            size,
        )
        n_rows = int(rng.choice(size.rows))
        first, second, self.kind, place = tables(rng, n_rows)
        ids = (
            (None, None)
            if size.first_id is None
            else ids_of(size.first_id, n_rows, self.kind, place)
        )
        self.policy = POLICIES[rng.integers(len(POLICIES))] | (
            {} if size.first_id is None else {"sample": 200}
        )
        self.servers = [
            hostile.Server(
                hostile.site(
                    folder / name,
                    rows=rows,
                    row_ids=own_ids,
                    schema=SCHEMA if is_table else None,
                    limits=QUICK,
                    **self.policy,
                ),
                strategy=strategy,
            )
            for name, rows, own_ids in (("one", first, ids[0]), ("other", second, ids[1]))
        ]
        self.has_plan = rng.random() < 0.3  # that of an honest run
        relation = (
            "replace" if "relations" in self.policy and rng.random() < 0.5 else "add-or-remove"
        )
        self.plan = own_plan(
            relation, str(rng.choice(["record", "client"], p=[0.8, 0.2])), is_small=not self.policy
        )
        self.client = find(strategy).strategy.client_type
        self.tasks = [
            name for name in dir(self.client) if isinstance(getattr(self.client, name), Askable)
        ]
        sends = [sent for task in self.tasks for sent in getattr(self.client, task).answer.sends]
        self.kept = [sent.kept_as for sent in sends if sent.kept_as]

    def keeps(self, task):
        """Tell whether what a task makes stays at the site."""
        asked = getattr(self.client, task, None)
        return isinstance(asked, Askable) and (not asked.answer.sends or asked.answer.keeps)

    def send(self, config, tensors):
        """Send a message to both, and note what it has shown."""
        seed, answers, entries, begin = int(self.rng.integers(2**62)), [], [], time.process_time()
        added = []
        for server in self.servers:
            ledger = server.site.ledger
            before = len(ledger.entries)
            client, full = "flower_fedclust.engine.client", {"format": hostile.FORMAT} | config

            # Noise is drawn anew after whatever a method has drawn from the same source, as many words as it has rows.
            def noise(arrays, releases, _, **more):
                added.append(releases)
                return add_noise(arrays, releases, SeededNoise([seed, 1]), **more)

            with (
                patch(f"{client}.add_noise", noise),
                patch(f"{client}.OperatingSystemNoise", lambda: SeededNoise([seed])),
                # Both sites are one site, which has one key.
                patch(
                    "flower_fedclust.site.app.sampled",
                    lambda data, most, _: sampled(data, most, bytes(32)),
                ),
            ):
                try:
                    answers.append(
                        server.site.client(server.context).fit(
                            hostile.FitIns(_parameters(tensors), full)
                        )
                    )
                except Exception as error:
                    return self.wrong(config, f"{type(error).__name__}: {error}")
            entries.append(ledger.entries[-1] if len(ledger.entries) > before else None)
        seconds = time.process_time() - begin
        self.found.seconds = max(self.found.seconds, seconds)
        if seconds > MOST_SECONDS:
            self.wrong(config, f"it took {seconds:.0f} s")
        said = [answer.metrics.get("failure", "answered") for answer in answers]
        self.found.outcomes[said[0]] += 1
        for answer in answers:
            more = set(answer.metrics) - {
                "format",
                "client",
                "failure",
                "missed",
                "exponents",
                "columns",
                "ledger",
                "hash",
            }
            if more or answer.metrics.get("failure") not in (None, "refused", "failed"):
                self.wrong(config, f"the answer says more than it may: {answer.metrics}")
        if (entries[0] is None) != (entries[1] is None):
            return self.wrong(
                config, f"whether it is charged depends on the rows: {said}, {self.why()}"
            )
        noisy = entries[0] is not None and any(
            "multiplier" in array for array in entries[0]["arrays"]
        )
        if not noisy and (
            said[0] != said[1]
            or answers[0].metrics.get("missed") != answers[1].metrics.get("missed")
        ):
            return self.wrong(
                config,
                f"whether it is answered depends on the rows, and costs nothing: {said}, {self.why()}",
            )
        if entries[0] is not None and entries[0]["arrays"] and said == ["answered", "answered"]:
            if len(added) == 2 and added[0] != added[1]:
                return self.wrong(config, f"the noise depends on the rows: {added}")
            self.compare(config, answers, entries[0], added[0] if added else None)
        return None

    def compare(self, config, answers, entry, added):
        """Note if what two answers differ by is more than the ledger accounts for, given the noise that was added."""
        pairs = list(
            zip(
                *(self.values(config, *one) for one in zip(answers, self.servers, strict=True)),
                strict=True,
            )
        )
        plan = json.loads(config["plan"]) if config.get("plan") else {}
        for about, release, (first, second) in zip(
            entry["arrays"], added or [None] * len(pairs), pairs, strict=True
        ):
            if "multiplier" not in about:
                shown = {"kept at the site", "computed from rows that carry noise"}
                if about["covered"] not in shown and not self.policy.get("row_count"):
                    self.wrong(config, f"'{about['content']}' leaves as it is: {about['covered']}")
                continue
            self.found.tasks[entry["task"]] += 1
            factor = 2.0 if plan.get("unit") == "client" else 1.0
            # In a sample a row that comes replaces another.
            if self.kind == "replaced" or "sample" in self.policy:
                factor *= 2.0 if about["relation"] == "add-or-remove" else 1.0
            elif about["relation"] == "replace":
                continue
            if (
                release is None
                or about["multiplier"] != plan["shares"][about["share"]]["multiplier"]
            ):
                self.wrong(config, f"the ledger has noise that was not added: {about}")
                continue
            distance = _distance(first, second, release)
            part = distance * about["multiplier"] / release.scale / factor
            self.found.moved = max(self.found.moved, part if part < math.inf else 0.0)
            if not part <= ROUNDING:
                self.wrong(
                    config,
                    f"a row that is {self.kind} moves '{about['content']}' {part:.6g} times as far as is counted",
                )

    def values(self, config, answer, server):
        """Return the arrays of an answer, or else what the client has kept of it."""
        sends = getattr(self.client, config["task"]).answer.sends
        if sends and sends[0].kept_as:
            states = [
                server.context.state[f"fedclust.{sent.kept_as}"].to_numpy_ndarrays()
                for sent in sends
            ]
            return [state[0] for state in states]
        return received_arrays(decode(answer.parameters), answer.metrics)

    def why(self):
        return " | ".join(
            hostile.audit(server.site)[-1].get("reason", "answered")[:200]
            for server in self.servers
        )

    def wrong(self, config, reason):
        short = {
            key: str(value)[:300]
            for key, value in config.items()
            if key not in ("client", "task", "run")
        }
        self.found.wrong.append(
            f"{self.client.__name__}.{config.get('task')}: {reason} ({self.kind}; {short})"[:1500]
        )


def _parameters(tensors):
    return Parameters(list(tensors), "numpy.ndarray")


def _distance(first, second, release):
    """Return how far apart two arrays are that carry the same noise, in the norm of the mechanism."""
    if isinstance(first, GridArray) != isinstance(second, GridArray) or np.shape(
        _plain(first)
    ) != np.shape(_plain(second)):
        return math.inf
    if isinstance(first, GridArray):
        if first.exponent != second.exponent:
            return math.inf
        # Modulo 2^64.
        apart = (first.integers - second.integers).astype(np.float64) * 2.0**first.exponent
    else:
        apart = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if release.mechanism == "laplace":
        return float(np.abs(apart).sum())
    size = (math.isqrt(8 * apart.size + 1) - 1) // 2
    weights = np.where(is_off_diagonal(size), 2.0, 1.0) if release.triangle else 1.0
    # Squares of a frame's largest numbers would overflow.
    largest = float(np.abs(apart).max(initial=0.0)) or 1.0
    return largest * float(np.sqrt(np.sum(weights * (apart.ravel() / largest) ** 2)))


def _plain(array):
    return array.integers if isinstance(array, GridArray) else array


# What a message becomes.


def changed_array(rng, array):
    """Return another array: of other numbers, of another shape or of another type."""
    array = np.array(array)
    if array.dtype == np.uint8 and rng.random() < 0.8:
        return changed_text(rng, array)
    numbers = array.astype(np.float64, copy=True) if array.dtype.kind in "biuf" else np.zeros(3)
    flat = numbers.reshape(-1)
    how = rng.integers(16)
    if how < 4 and flat.size:
        flat[rng.integers(flat.size)] = float(
            rng.choice([0, 1, -1, 1e-9, 1e9, 1e300, 5e-324, np.inf, -np.inf, np.nan])
        )
        return numbers
    if how < 8:
        return numbers * rng.choice([0.0, 0.5, 2.0, -1.0, 1e-6, 1e6, 1e150, 1e-300])
    if how == 8:
        return rng.normal(size=array.shape) * rng.choice([1.0, 3.0, 1e6])
    if how == 9:
        return numbers.astype(rng.choice(["f2", "f4", "i1", "u1", "i8", "u8", "?", "f8"]))
    if how == 10:
        return (
            np.array(array, dtype=rng.choice(["c16", "S3", "U3", "M8[s]", "g"]))
            if array.dtype.kind == "f"
            else array
        )
    if how == 11:
        return numbers.T
    if how == 12:
        return numbers.reshape(-1)[: rng.integers(4)]
    if how == 13 and array.ndim:
        return np.repeat(numbers, rng.choice([0, 2, 50]), axis=0)
    if how == 14:
        return np.zeros([int(size) for size in rng.choice([0, 1, 2, 3, 100], size=rng.integers(4))])
    return np.array(rng.choice([0.0, 1.0, np.nan, 1e9]))


def changed_number(rng, value):
    """Return another value of an argument: one near it, a small one, or anything."""
    how = rng.random()
    if how < 0.4 and isinstance(value, (int, float)) and math.isfinite(value):
        return type(value)(value * 10.0 ** rng.integers(-9, 10))
    return int(rng.integers(3)) if how < 0.7 else NUMBERS[rng.integers(len(NUMBERS))]


def changed_text(rng, array):
    """Return another JSON text, as an array: with another value somewhere, or one entry twice, or none."""
    try:
        found = at = json.loads(array.tobytes())
        while isinstance(at, (dict, list)) and at:
            place = (
                list(at)[rng.integers(len(at))]
                if isinstance(at, dict)
                else int(rng.integers(len(at)))
            )
            if not isinstance(at[place], (dict, list)) or not at[place] or rng.random() < 0.2:
                at[place] = NUMBERS[rng.integers(len(NUMBERS))]
                break
            if isinstance(at, list) and rng.random() < 0.2:
                at.append(at[place])
            at = at[place]
        text = json.dumps(found)
    except ValueError:
        text = "["
    return np.frombuffer(text.encode(), dtype=np.uint8)


def paid(rng, pair, config):
    """Return the message with parts of the run's plan for its arrays: anybody can name them."""
    asked = getattr(pair.client, str(config.get("task")), None)
    if not isinstance(asked, Askable):
        return config
    n_arrays = len(asked.answer.sends)
    names = [f"gaussian {index}" for index in range(n_arrays)]
    if rng.random() < 0.2:
        names = [str(rng.choice(["laplace 0", "laplace 1", "sampled", name])) for name in names]
    return config | {"parts": json.dumps(names)}


def reasked(rng, pair, config, tensors):
    """Return the message with its question in another frame, of another view or with another finish."""
    try:
        asked = getattr(pair.client, config["task"])
        question = read_question(
            asked, [] if config.get("empty") else decode(_parameters(tensors)), config, pair.client
        )
    except Exception:  # what the server has made of the message says nothing any more
        return config, tensors
    if not isinstance(asked, ByRow):
        return config, tensors
    how, norms = rng.integers(4), [None, 1.0, 1e-6, 1e-300, 1e6, 1e300]
    if how == 0:
        at_most = tuple(norms[rng.integers(len(norms))] for _ in asked.answer.sends)
        question = replace(
            question,
            finish=None
            if rng.random() < 0.3
            else Finish(str(rng.choice(["mean", "total"])), at_most),
        )
    elif how == 1 and question.frame is not None:
        frame = question.frame
        radius = frame.radius * float(rng.choice([1e-9, 0.1, 1.0, 10.0, 1e9, 1e150]))
        question = replace(
            question, frame=replace(frame, radius=radius, norm=int(rng.choice([1, 2])))
        )
    elif how == 2:
        columns = int(rng.choice([N_COLUMNS, N_COLUMNS, 1, 2, 0]))
        frame = Frame(
            rng.normal(size=columns) * rng.choice([0.0, 1.0, 1e6]),
            float(rng.choice([0.5, 4.0, 1e3])),
        )
        question = replace(question, frame=frame)
    else:
        question = replace(question, view=None)
    arrays, fields = question.to_wire()
    kept = {
        key: value
        for key, value in config.items()
        if key not in ("frame", "view", "finish", "empty")
    }
    return kept | fields, list(encode(arrays).tensors)


def changed(rng, pair, message, others):
    """Return another message."""
    config, tensors = dict(message[0]), list(message[1])
    for _ in range(rng.choice([0, 1, 2, 3], p=[0.25, 0.4, 0.2, 0.15])):
        how = min(rng.integers(12), 10)
        if how < 4 and tensors and not config.get("empty"):
            index = rng.integers(len(tensors))
            (array,) = decode(_parameters([tensors[index]]))
            tensors[index] = encode([changed_array(rng, array)]).tensors[0]
        elif how < 6:
            arguments = json.loads(config.get("arguments", "{}"))
            names = [*arguments] if rng.random() < 0.95 else ["more"]
            if names:
                name = names[rng.integers(len(names))]
                arguments[name] = changed_number(rng, arguments.get(name))
            config["arguments"] = json.dumps(arguments)
        elif how == 6:
            config["task"] = str(rng.choice([*pair.tasks, "fit", "remember", "enrol"]))
        elif how == 7:
            name = str(
                rng.choice(["parts", "plan", "view", "finish", "frame", "view", "finish", "frame"])
            )
            config = changed_field(rng, config, name)
        elif how == 10:
            config, tensors = reasked(rng, pair, config, tensors)
        elif how == 8:
            config[
                str(
                    rng.choice(
                        [
                            "rows",
                            "n_shares",
                            "n_clients",
                            "plan",
                            "columns",
                            "schema",
                            "empty",
                            "goes_on",
                        ]
                    )
                )
            ] = str(
                rng.choice(["", "noisy rows", "embedding", "places", "1", "true", "[]", "{}", "["])
            )
        else:
            other = others[rng.integers(len(others))]
            name = str(rng.choice(list(other[0])))
            config[name] = other[0][name]
    if pair.kept and rng.random() < 0.15:
        config["rows"] = pair.kept[rng.integers(len(pair.kept))]
    if rng.random() < (0.1 if pair.has_plan else 0.8):
        config = paid(rng, pair, config)
    return config, tensors


def changed_field(rng, config, name):
    """Return the message with another of the fields that say how its question is meant and what pays for it."""
    if name == "frame":
        return config | {
            "frame": NUMBERS[rng.integers(len(NUMBERS))]
            if rng.random() < 0.5
            else int(rng.integers(5))
        }
    text = str(
        config.get(name)
        or rng.choice(["[]", '["mean", [1.0]]', '["total", [null]]', '["gaussian 0"]'])
    )
    if name == "view" and name not in config:
        return config
    return config | {
        name: changed_text(rng, np.frombuffer(text.encode(), dtype=np.uint8)).tobytes().decode()
    }


def widened(rng, pair, message):
    """Return the message with the rows of one of its arrays repeated to one of the sizes of a limit."""
    config, tensors = message
    places = [] if config.get("empty") else list(rng.permutation(len(tensors)))
    for place in places:
        (array,) = decode(_parameters([tensors[place]]))
        if array.ndim == 2 and array.dtype.kind == "f" and array.size:
            wanted = int(rng.choice(pair.size.entries))
            n_rows = wanted if rng.random() < 0.5 else -(-wanted // array.shape[1])
            wide = np.resize(array, (n_rows, array.shape[1])) * (
                1.0 + 1e-3 * rng.normal(size=(n_rows, 1))
            )
            return config, [*tensors[:place], encode([wide]).tensors[0], *tensors[place + 1 :]]
    return message


def attack(strategy, n_messages, seed=0, a_run=25, size=Size()):
    """Send so many messages to sites that take part in a strategy; return what was found.

    Warnings are no answers, so a suite that turns them into errors must not turn them into findings.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _attack(strategy, n_messages, seed, a_run, size)


def _attack(strategy, n_messages, seed, a_run, size):
    found, rng = Found(), np.random.default_rng([seed, *strategy.encode()])
    client = find(strategy).strategy.client_type
    alike = [name for name in entries() if find(name).strategy.client_type is client]
    sources = [(is_table, recorded(name, is_table)) for name in alike for is_table in (False, True)]
    sources = [source for source in sources if len(source[1]) > 1]
    n_sent, disk = 0, patch("flower_fedclust.engine.disk.os.fsync", lambda handle: None)
    while n_sent < n_messages:
        is_table, heard = sources[rng.integers(len(sources))]
        folder = Path(tempfile.mkdtemp())
        try:
            with disk:
                pair = Pair(folder, rng, strategy, is_table, found, size)
                n_sent += _one_run(pair, heard, min(a_run, n_messages - n_sent))
            disk_used = (
                sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
            )
            if disk_used > MOST_DISK * max(1, max(size.rows) / 4096):
                found.wrong.append(f"{disk_used:.0f} MB are kept of {a_run} messages")
        finally:
            shutil.rmtree(folder)
    return found


def _one_run(pair, heard, n_messages):
    """Enrol, have the sites keep what an honest run does, and go on with anything."""
    rng, by_task = pair.rng, {}
    if not pair.has_plan:
        heard = [(config | {"plan": pair.plan}, tensors) for config, tensors in heard]
    for message in heard[1:]:
        by_task.setdefault(message[0]["task"], []).append(message)
    begin = [heard[0], *(one for one in heard[1:] if pair.keeps(one[0]["task"]))][: n_messages // 2]
    follows = rng.random() < 0.3
    for index in range(n_messages):
        if index < len(begin) and not follows:
            config, tensors = (
                begin[index] if rng.random() < 0.8 else changed(rng, pair, begin[index], heard)
            )
        else:
            own = by_task[list(by_task)[rng.integers(len(by_task))]]
            message = heard[index % len(heard)] if follows else own[rng.integers(len(own))]
            config, tensors = changed(rng, pair, message, heard)
        if pair.size.entries and rng.random() < 0.5:
            config, tensors = widened(rng, pair, (config, tensors))
        number = index + 1 if rng.random() < 0.95 else index
        pair.send(config | {"run": "run", "round": number}, tensors)
    return n_messages


def of_each_client():
    """Return a strategy for each client half that there is."""
    return list({find(name).strategy.client_type: name for name in entries()}.values())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("strategies", nargs="*", default=of_each_client())
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=400, help="rows of a table")
    parser.add_argument(
        "--at", choices=[*LIMITS], help="a limit, on whose both sides tables and messages are"
    )
    given = parser.parse_args()
    size = LIMITS[given.at] if given.at else Size(rows=(given.rows,))
    is_wrong = False
    for name in given.strategies:
        begin = time.monotonic()
        found = attack(name, given.messages, given.seed, size=size)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name}: {dict(found.outcomes)}, with noise {found.tasks.total()} arrays of {len(found.tasks)} tasks, "
            f"largest change {found.moved:.6f}, slowest {found.seconds:.1f} s, {memory:.0f} MB, "
            f"{time.monotonic() - begin:.0f} s",
            flush=True,
        )
        for reason, count in Counter(found.wrong).most_common(20):
            print(f"    {count} x {reason}", flush=True)
        is_wrong |= bool(found.wrong) or memory > MOST_MEMORY
    raise SystemExit(int(is_wrong))


if __name__ == "__main__":
    main()
