"""Growth of every strategy in clients, rows, columns, clusters and rounds: seconds, peak memory, slopes on log axes.

    OMP_NUM_THREADS=1 python benchmarks/growth.py                    every strategy on every axis
    OMP_NUM_THREADS=1 python benchmarks/growth.py --strategies k-fed,feddp-kmeans --axes clients --limit 60
    OMP_NUM_THREADS=1 python benchmarks/growth.py clients-100000     100,000 clients of 20 rows and 50 columns

A slope of 1 is linear growth; "!" marks slopes above 1.2. The slope is between the last two points, because the fixed
costs of a run hide the growth at small sizes. Each point runs in its own process. A point beyond the time limit ends
its axis, and counts as the limit if that makes the slope larger.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
from common import DELTA, header, in_own_process, measured, slope

from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import accepted_parameters, find, strategies
from flower_fedclust.simulation import simulate

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
#: A slope of the memory beyond that before the run is printed from so many MB on.
LEAST_MEGABYTES = 20.0


def mixture(n_clients: int, n_rows: int, n_columns: int, n_clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of all clients, and 20 rows per cluster for the server, around the same means."""
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(n_clusters, n_columns))
    rows = rng.normal(size=(n_clients * n_rows, n_columns))
    for start in range(0, len(rows), 10_000):  # avoid a second array of this size
        part = rows[start : start + 10_000]
        part += means[rng.integers(n_clusters, size=len(part))]
    public = np.repeat(means, 20, axis=0)
    return rows, public + rng.normal(size=public.shape)


def point(name: str, shape: dict[str, int], parameters: dict[str, object]) -> dict[str, float]:
    """Run a strategy once, and return seconds and memory."""
    warnings.simplefilter("ignore")
    accepted = accepted_parameters(name)
    rows, public = mixture(*(shape[axis] for axis in ("clients", "rows", "columns", "clusters")))
    given = {**find(name).example, **{own: shape[axis] for axis, own in PARAMETERS.items()}, **parameters}
    server_rows = public if needs_server_rows([name]) else None
    (strategy,) = make_strategies([name], {one: value for one, value in given.items() if one in accepted}, server_rows)
    clients = np.split(rows, shape["clients"])
    with one_thread():
        return measured(lambda: simulate(strategy, clients, seed=0, progress=False))


def shapes(axis: str) -> Iterator[tuple[int, dict[str, int]]]:
    for size in AXES[axis]:
        yield size, {**BASE, axis: size}


def grow(name: str, axis: str, limit: float) -> list[str]:
    """Measure one strategy on one axis, print a line, and return the quantities that grow too fast."""
    seconds: dict[int, float] = {}
    bound: dict[int, float] = {}
    memory: dict[int, float] = {}
    cells = []
    for size, shape in shapes(axis):
        result = in_own_process(point, name, shape, {}, limit=limit)
        if isinstance(result, str):
            cells.append(f"{size}: {result}")
            if result.startswith("more than"):
                bound = dict([*list(seconds.items())[-1:], (size, limit)])
            break
        seconds[size], memory[size] = result["seconds"], result["megabytes"] - result["before"]
        cells.append(f"{size}: {result['seconds']:.2f} s, {result['megabytes']:.0f} MB")
    slopes: dict[str, float] = {}
    parts = (("seconds", seconds, 0.0), ("seconds", bound, 0.0), ("memory", memory, LEAST_MEGABYTES))
    for quantity, values, least in parts:
        last = dict(list(values.items())[-2:])
        if len(last) > 1 and min(last.values()) > least:
            slopes[quantity] = max(slopes.get(quantity, 0.0), slope(list(last), list(last.values())))
    shown = ", ".join(f"{quantity} {one:.2f}{'!' if one > STEEP else ''}" for quantity, one in slopes.items())
    print(f"| {name} | {axis} | {'; '.join(cells)} | {shown} |", flush=True)
    return [f"{name}, {axis}: {quantity} {one:.2f}" for quantity, one in slopes.items() if one > STEEP]


def clients_100000() -> None:
    shape = {"clients": 100_000, "rows": 20, "columns": 50, "clusters": 10, "rounds": 2}
    own = {"privacy_unit": "client", "rows_per_client": 20, "epsilon": 1.0, "delta": DELTA}
    found = in_own_process(point, "feddp-kmeans", shape, own)
    print("FedDP-KMeans, client level, 100,000 clients of 20 rows and 50 columns, inline; goal: 120 s and 3 GB")
    if isinstance(found, str):
        raise SystemExit(found)
    print(
        f"{found['seconds']:.1f} s, peak {found['megabytes']:.0f} MB, {found['before']:.0f} MB before (rows, imports)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=["clients-100000"])
    parser.add_argument("--strategies", help="names with commas between them; by default all of the registry")
    parser.add_argument("--axes", help=f"axes with commas between them, of {', '.join(AXES)}; by default all")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one point (120)")
    arguments = parser.parse_args()
    print(header())
    if arguments.case:
        clients_100000()
        return
    axes = (arguments.axes or ",".join(AXES)).split(",")
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise SystemExit(f"There is no axis '{unknown[0]}': there are {', '.join(AXES)}.")
    print("| strategy | axis | seconds and peak memory | slopes on log axes |\n|---|---|---|---|")
    steep = []
    for name in arguments.strategies.split(",") if arguments.strategies else strategies():
        for axis in axes:
            # A strategy without this parameter does not grow with it.
            if PARAMETERS.get(axis, "") in {"", *accepted_parameters(name)}:
                steep += grow(name, axis, arguments.limit)
    print(f"\nSlopes above {STEEP}:", *(steep or ["none"]), sep="\n  ")


if __name__ == "__main__":
    main()
