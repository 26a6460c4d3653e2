"""Growth in clients, rows, columns, clusters and rounds: seconds, peak memory, bytes sent, and slopes on log axes.

    OMP_NUM_THREADS=1 python benchmarks/growth.py check     fail if a slope has risen clearly since growth.json
    OMP_NUM_THREADS=1 python benchmarks/growth.py record    write growth.json and docs/growth.png
    OMP_NUM_THREADS=1 python benchmarks/growth.py scale     the tables of docs/scale.md (ten minutes)
    OMP_NUM_THREADS=1 python benchmarks/growth.py every     every strategy on every axis (an hour)
    OMP_NUM_THREADS=1 python benchmarks/growth.py every --strategies k-fed,fedsc --axes clients --limit 60

A slope of 1 is linear growth; "!" marks slopes above 1.2. The slope is between the last two points, because the fixed
costs of a run hide the growth at small sizes. Each point runs in its own process; its seconds are processor time, the
least of some runs. A point beyond the time limit ends its axis, and counts as the limit if that makes the slope larger.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import DELTA, header, in_own_process, measured, slope, timed
from pyarrow import parquet

import flower_fedclust as fc
from flower_fedclust.data import read_batches
from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import accepted_parameters, find, strategies

#: Where all axes cross.
BASE = {"clients": 8, "rows": 60, "columns": 8, "clusters": 3, "rounds": 2}
#: "rows" counts the rows of one client.
AXES = {
    "clients": (16, 64, 256, 1024),
    "rows": (60, 250, 1000, 4000),
    "columns": (8, 32, 128, 512),
    "clusters": (4, 8, 16),
    "rounds": (4, 16, 64),
}
PARAMETERS = {"clusters": "n_clusters", "rounds": "n_rounds"}
STEEP = 1.2
#: A slope of the memory beyond that before the run is taken from so many MB on.
LEAST_MEGABYTES = 20.0

#: What `check` measures: the strategies that people take, at sizes where the growth outweighs the fixed costs.
CHECKED: dict[str, dict[str, tuple[int, ...]]] = {
    "private-kmeans": {
        "clients": (1000, 8000),
        "rows": (10_000, 80_000),
        "columns": (128, 1024),
        "clusters": (32, 256),
    },
    "federated-kmeans": {
        "clients": (500, 4000),
        "rows": (10_000, 80_000),
        "columns": (128, 1024),
        "clusters": (8, 64),
    },
    "feddp-kmeans": {
        "clients": (1000, 8000),
        "rows": (10_000, 80_000),
        "columns": (128, 1024),
        "rounds": (32, 256),
    },
    "private-density": {"clients": (1000, 8000), "rows": (10_000, 80_000)},
    "k-fed": {"clients": (50, 200), "rows": (1000, 8000), "columns": (128, 1024)},
    "fedsc": {"clients": (16, 64), "rows": (250, 1000), "columns": (128, 512)},
    "fedsc-sums": {"clients": (125, 1000), "rows": (2000, 8000)},
    "spp-fgc": {"clients": (8, 32), "rows": (250, 1000)},
    "spp-fgc-sums": {"rows": (5000, 40_000)},
    "fed-umap-sums": {"clients": (16, 64), "rows": (500, 2000)},
    "dp-fedc": {"clients": (64, 256), "rounds": (16, 64)},
}
#: A slope has risen if it exceeds the recorded one by so much, and by two of its standard errors, in both measurements.
RISE = {"seconds": 0.35, "megabytes": 0.35, "bytes": 0.2}
BASELINE = Path(__file__).with_suffix(".json")
PICTURE = Path(__file__).parents[1] / "docs" / "growth.png"

Shape = Mapping[str, int]
#: By quantity: the value at each size.
Curves = dict[str, dict[int, float]]


def mixture(
    n_clients: int, n_rows: int, n_columns: int, n_clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of all clients, and 20 rows per cluster for the server, around the same means."""
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(n_clusters, n_columns))
    rows = rng.normal(size=(n_clients * n_rows, n_columns))
    for start in range(0, len(rows), 10_000):  # avoid a second array of this size
        part = rows[start : start + 10_000]
        part += means[rng.integers(n_clusters, size=len(part))]
    public = np.repeat(means, 20, axis=0)
    return rows, public + rng.normal(size=public.shape)


def made(name: str, shape: Shape, public: np.ndarray, parameters: Mapping[str, object]) -> Any:
    """Return a strategy of the registry."""
    accepted = accepted_parameters(name)
    given = {
        **find(name).example,
        **{own: shape[axis] for axis, own in PARAMETERS.items()},
        **parameters,
    }
    rows = public if needs_server_rows([name]) else None
    (strategy,) = make_strategies(
        [name], {one: value for one, value in given.items() if one in accepted}, rows
    )
    return strategy


def point(name: str, shape: Shape, runs: int = 1) -> dict[str, float]:
    """Run a strategy; return its least processor time and the error of that, its peak memory and its bytes."""
    warnings.simplefilter("ignore")
    rows, public = mixture(*(shape[axis] for axis in ("clients", "rows", "columns", "clusters")))
    strategy, clients = made(name, shape, public, {}), np.split(rows, shape["clients"])
    results, seconds = [], []
    with one_thread():
        few = [part[: BASE["rows"]] for part in clients[: BASE["clients"]]]
        # What is imported and compiled once does not count.
        fc.simulate(strategy, few, seed=0, progress=False)
        for _ in range(runs):
            start = time.process_time()
            found = measured(
                lambda: results.append(fc.simulate(strategy, clients, seed=0, progress=False))
            )
            seconds.append(time.process_time() - start)
    sent = results[0].bytes_up + results[0].bytes_down
    least, *others = sorted(seconds)
    # The least of some times is about as sure as the next is near.
    error = np.log(others[0] / least) if others else 0.0
    return {**found, "wall": found["seconds"], "seconds": least, "error": error, "bytes": sent}


def grow(
    name: str, axis: str, sizes: tuple[int, ...], limit: float, runs: int = 1
) -> tuple[Curves, dict[str, float], float]:
    """Measure one strategy on one axis and print a line; return curves, slopes and the error of the seconds' slope."""
    curves: Curves = {"seconds": {}, "megabytes": {}, "bytes": {}}
    errors: dict[int, float] = {}
    bound: dict[int, float] = {}
    cells = []
    for size in sizes:
        result = in_own_process(point, name, {**BASE, axis: size}, runs, limit=limit)
        if isinstance(result, str):
            cells.append(f"{size}: {result}")
            if result.startswith("more than"):
                bound = dict([*list(curves["seconds"].items())[-1:], (size, limit)])
            break
        curves["seconds"][size], curves["bytes"][size] = result["seconds"], result["bytes"]
        curves["megabytes"][size] = result["megabytes"] - result["before"]
        errors[size] = result["error"]
        cells.append(
            f"{size}: {result['seconds']:.2f} s, {result['megabytes']:.0f} MB, {result['bytes'] / 1e6:.2g} MB"
        )
    slopes: dict[str, float] = {}
    for quantity, values in (*curves.items(), ("seconds", bound)):
        last = dict(list(values.items())[-2:])
        if len(last) > 1 and min(last.values()) > (
            LEAST_MEGABYTES if quantity == "megabytes" else 0.0
        ):
            slopes[quantity] = max(
                slopes.get(quantity, 0.0), slope(list(last), list(last.values()))
            )
    shown = ", ".join(
        f"{quantity} {one:.2f}{'!' if one > STEEP else ''}" for quantity, one in slopes.items()
    )
    print(f"| {name} | {axis} | {'; '.join(cells)} | {shown} |", flush=True)
    (one, first), (other, second) = [*[(1, 0.0)] * 2, *errors.items()][-2:]
    error = math.hypot(first, second) / math.log(other / one) if other > one else 0.0
    return curves, slopes, error


def say_columns() -> None:
    print(
        "| strategy | axis | processor time, peak memory and bytes sent | slopes on log axes |\n|---|---|---|---|"
    )


def every(arguments: argparse.Namespace) -> None:
    axes = (arguments.axes or ",".join(AXES)).split(",")
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise SystemExit(f"There is no axis '{unknown[0]}': there are {', '.join(AXES)}.")
    say_columns()
    steep = []
    for name in arguments.strategies.split(",") if arguments.strategies else strategies():
        for axis in axes:
            # A strategy without this parameter does not grow with it.
            if PARAMETERS.get(axis, "") in {"", *accepted_parameters(name)}:
                _, slopes, _ = grow(name, axis, AXES[axis], arguments.limit)
                steep += [
                    f"{name}, {axis}: {what} {one:.2f}"
                    for what, one in slopes.items()
                    if one > STEEP
                ]
    print(f"\nSlopes above {STEEP}:", *(steep or ["none"]), sep="\n  ")


# Check and record.


def check(arguments: argparse.Namespace) -> None:
    """Compare the slopes with the recorded ones; a slope that has risen is measured again before it counts."""
    recorded = json.loads(BASELINE.read_text(encoding="utf-8"))["slopes"]
    say_columns()
    risen = []
    for name in arguments.strategies.split(",") if arguments.strategies else CHECKED:
        for axis, sizes in CHECKED[name].items():
            before = recorded[f"{name}, {axis}"]
            for runs in (2, 4):
                _, slopes, error = grow(name, axis, sizes, 120.0, runs)
                worse = rises(before, slopes, error)
                if not worse:
                    break
            risen += [f"{name}, {axis}: {one}" for one in worse]
    if risen:
        raise SystemExit("\n  ".join(["Slopes that have risen:", *risen]))
    print("No slope has risen.")


def rises(before: Mapping[str, float], now: Mapping[str, float], error: float) -> list[str]:
    """Say which slopes have clearly risen; ``error`` is the standard error of the seconds' slope.

    A point that failed has no slope of seconds. Little memory has no slope; more of it may be linear.
    """
    found = []
    for what, least in RISE.items():
        recorded = before.get(what, 1.0)
        slope = now.get(what, 0.0 if what == "megabytes" else math.inf)
        if not slope < recorded + max(least, 2.0 * error if what == "seconds" else 0.0):
            found.append(f"{what} {slope:.2f}, was {recorded:.2f}")
    return found


def record(arguments: argparse.Namespace) -> None:
    """Write slopes and curves, of all or of some strategies, and draw them."""
    found = {"slopes": {}, "curves": {}}
    if arguments.strategies:
        found = {key: json.loads(BASELINE.read_text(encoding="utf-8"))[key] for key in found}
    say_columns()
    for name in arguments.strategies.split(",") if arguments.strategies else CHECKED:
        for axis, sizes in CHECKED[name].items():
            steps = tuple(
                size // part for size in sizes[:1] for part in (16, 4) if size // part >= BASE[axis]
            )
            curves, slopes, _ = grow(name, axis, (*steps, *sizes), 120.0, runs=4)
            line = f"{name}, {axis}"
            found["curves"][line] = {
                what: [[size, round(one, 3)] for size, one in values.items()]
                for what, values in curves.items()
            }
            found["slopes"][line] = {what: round(one, 2) for what, one in slopes.items()}
        contents = {"made with": header(), "base": BASE, **found}
        BASELINE.write_text(_compact(contents), encoding="utf-8")
    draw(found["curves"])


def _compact(contents: Mapping[str, Any]) -> str:
    """Return JSON with a line for each strategy and axis."""
    parts = []
    for key, value in contents.items():
        lines = (
            [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in value.items()]
            if key in {"slopes", "curves"}
            else []
        )
        shown = "{\n" + ",\n".join(lines) + "\n}" if lines else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def draw(curves: Mapping[str, Mapping[str, list[list[float]]]]) -> None:
    """Draw the seconds of each strategy against the size, one panel for each axis."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5), layout="constrained")
    figure.suptitle(
        "Most strategies take time in proportion to rows and clients (gray: twice the size, twice the time)"
    )
    colors = {name: colormaps["tab20"](index) for index, name in enumerate(CHECKED)}
    for panel, axis in zip(figure.subplots(2, 3).flat, [*AXES, None], strict=True):
        if axis is None:
            for place, (name, color) in enumerate(colors.items()):
                panel.text(
                    0.05,
                    0.95 - 0.08 * place,
                    name,
                    color=color,
                    va="top",
                    transform=panel.transAxes,
                )
            panel.axis("off")
            continue
        shown = {
            key.partition(",")[0]: one["seconds"]
            for key, one in curves.items()
            if key.endswith(f", {axis}")
        }
        sizes = [size for points in shown.values() for size, _ in points]
        ends = np.array([min(sizes), max(sizes)])
        for level in 10.0 ** np.arange(-6, 3):
            panel.plot(ends, level * ends, color="#e5e5e5", linewidth=0.8, zorder=0)
        for name, points in shown.items():
            panel.plot(*zip(*points, strict=True), color=colors[name], marker="o", markersize=3)
        seconds = [one for points in shown.values() for _, one in points]
        own = {
            "rows": "rows of each of 8 clients",
            "clients": f"clients of {BASE['rows']} rows",
        }.get(axis, axis)
        panel.set(xscale="log", yscale="log", xlabel=own, ylabel="seconds", xlim=ends * [0.8, 1.25])
        panel.set_ylim(0.7 * min(seconds), 1.4 * max(seconds))
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


# Scale.

#: Of a run at scale: rows, columns and clusters, and the strategies with their parameters.
SCALE = {"clients": 10, "rows": 100_000, "columns": 50, "clusters": 10, "rounds": 10}
AT_SCALE: dict[str, dict[str, object]] = {
    "private-kmeans": {"epsilon": 1.0, "max_norm": 40.0},
    "federated-kmeans": {},
    "feddp-kmeans": {"epsilon": 1.0},
    "private-density": {"epsilon": 1.0, "max_norm": 40.0},
    "private-mixture": {"epsilon": 1.0, "max_norm": 40.0},
    "fedsc-sums": {},
    "spp-fgc-sums": {},
    "fed-umap-sums": {},
    "k-fed": {},
}
MANY = {"rows": 20, "columns": 20, "clusters": 10, "rounds": 5}
OF_MANY: dict[str, dict[str, object]] = {
    "private-kmeans": {"epsilon": 1.0, "max_norm": 25.0},
    "federated-kmeans": {},
    "feddp-kmeans": {"epsilon": 1.0},
    "feddp-kmeans; per client": {"epsilon": 1.0, "privacy_unit": "client", "rows_per_client": 20},
    "private-density": {"epsilon": 1.0, "max_norm": 25.0},
    "spp-fgc-sums": {},
    "fedsc-sums": {},
}


def at_scale(
    name: str, shape: Shape, parameters: Mapping[str, object], folder: str | None = None
) -> dict[str, float]:
    """Run a strategy once, on rows in memory or in files, and return seconds, memory and rounds."""
    warnings.simplefilter("ignore")
    n_clients = shape["clients"]
    if folder is None:
        rows, public = mixture(n_clients, shape["rows"], shape["columns"], shape["clusters"])
        clients = np.split(rows, n_clients)
    else:
        _, public = mixture(1, 1, shape["columns"], shape["clusters"])
        clients = [
            read_batches(Path(folder) / f"{index}.parquet").rows for index in range(n_clients)
        ]
    own = {**parameters, **({"delta": DELTA} if "epsilon" in parameters else {})}
    strategy = made(name.partition(";")[0], shape, public, own)
    results: list[fc.Result] = []
    start = time.process_time()
    found = measured(
        lambda: results.append(fc.simulate(strategy, clients, seed=0, n_jobs=1, progress=False))
    )
    sent = results[0].bytes_up + results[0].bytes_down
    return {
        **found,
        "run": time.process_time() - start,
        "rounds": results[0].n_rounds,
        "bytes": sent,
    }


#: What no run can do without, and scikit-learn.
LIMITS = (
    "add up all entries",
    "read all files",
    "multiply rows by centers",
    "KMeans(n_init=1)",
    "MiniBatchKMeans",
)


def limit_of(what: str, shape: Shape, folder: str) -> dict[str, float]:
    """Time one of the limits: the least of two, after one."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    rows, _ = mixture(*(shape[axis] for axis in ("clients", "rows", "columns", "clusters")))
    k, centers, step = shape["clusters"], rows[: shape["clusters"]], 2**18 // shape["columns"]

    def batches() -> Iterator[np.ndarray]:
        for index in range(shape["clients"]):
            yield from (
                batch.rows
                for batch in read_batches(Path(folder) / f"{index}.parquet").rows.read(step)
            )

    def one_pass() -> None:
        estimator = MiniBatchKMeans(k, random_state=0)
        for batch in batches():
            estimator.partial_fit(batch)

    work: tuple[Callable[[], object], ...] = (
        rows.sum,
        lambda: deque(batches(), maxlen=0),
        lambda: [rows[start : start + step] @ centers.T for start in range(0, len(rows), step)],
        lambda: KMeans(k, n_init=1, random_state=0).fit(rows),
        one_pass,
    )
    with one_thread():
        return {"seconds": timed(work[LIMITS.index(what)], 2, clock=time.process_time)[0]}


def scale(arguments: argparse.Namespace) -> None:
    """Print the tables of docs/scale.md: processor time of one thread, with labels and metrics."""
    chosen = (arguments.strategies or "limits," + ",".join({**AT_SCALE, **OF_MANY})).split(",")
    rows, _ = mixture(*(SCALE[axis] for axis in ("clients", "rows", "columns", "clusters")))
    with tempfile.TemporaryDirectory() as folder:
        for index, part in enumerate(np.split(rows, SCALE["clients"])):
            columns = {
                f"c{place}": np.ascontiguousarray(column) for place, column in enumerate(part.T)
            }
            parquet.write_table(pa.table(columns), f"{folder}/{index}.parquet")
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        n_rows, n_bytes = len(rows), rows.nbytes
        del rows
        print(f"{n_rows:,} rows: {n_bytes / 1e6:.0f} MB, {size / 1e6:.0f} MB as files")
        for what in LIMITS if "limits" in chosen else ():
            found = in_own_process(limit_of, what, SCALE, folder)
            per_second = "" if isinstance(found, str) else f"{n_rows / found['seconds']:,.0f}"
            print(
                f"| {what} | {found if isinstance(found, str) else round(found['seconds'], 3)} s | {per_second} |"
            )
        for name in [one for one in AT_SCALE if one in chosen]:
            for where in (None, folder):
                found = in_own_process(
                    at_scale, name, SCALE, AT_SCALE[name], where, limit=arguments.limit
                )
                print(
                    f"| {name} | {'memory' if where is None else 'files'} | {_row(found, n_rows)} |",
                    flush=True,
                )
    for n_clients in (10_000, 100_000):
        for name in [one for one in OF_MANY if one in chosen]:
            found = in_own_process(
                at_scale, name, {**MANY, "clients": n_clients}, OF_MANY[name], limit=arguments.limit
            )
            print(f"| {name} | {n_clients:,} clients | {_row(found, n_clients)} |", flush=True)


def _row(found: dict[str, float] | str, count: int) -> str:
    if isinstance(found, str):
        return found
    per_round = count * found["rounds"] / found["run"]
    return (
        f"{found['run']:.1f} s | {found['rounds']:.0f} rounds | {per_round:,.0f} per second and round | "
        f"{found['megabytes'] - found['before']:.0f} MB more than {found['before']:.0f} MB | "
        f"{found['bytes'] / 1e6:.2g} MB sent"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = {"check": check, "record": record, "scale": scale, "every": every}
    parser.add_argument("case", choices=cases)
    parser.add_argument("--strategies", help="names with commas between them; by default all")
    parser.add_argument(
        "--axes", help=f"every: axes with commas between them, of {', '.join(AXES)}; by default all"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one point (120)")
    arguments = parser.parse_args()
    print(header())
    cases[arguments.case](arguments)


if __name__ == "__main__":
    main()
