"""Rows that are read in batches: peak memory, and a round's time compared with the time of only reading the rows.

    python benchmarks/beyond_memory.py make rows.parquet --rows 10_000_000
    python benchmarks/beyond_memory.py memory rows.parquet  # a whole run, with its labels
    python benchmarks/beyond_memory.py rounds rows.parquet  # each kind of round, and only reading, in turn

Run "memory" in a process of its own: the peak is the process's.
"""

import argparse
import resource
import tempfile
import threading
import time
from collections import defaultdict
from queue import Queue

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import flower_fedclust as fc
from flower_fedclust.data import read_batches
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.numerics.threads import jobs, one_thread

N_COLUMNS, N_CLUSTERS = 50, 10


def make(path, n_rows):
    """Write a mixture of Gaussians, a million rows in each row group."""
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=4.0, size=(N_CLUSTERS, N_COLUMNS))
    schema = pa.schema([(f"c{index}", pa.float64()) for index in range(N_COLUMNS)])
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, n_rows, 1_000_000):
            labels = rng.integers(0, N_CLUSTERS, min(1_000_000, n_rows - start))
            rows = centers[labels] + rng.normal(size=(len(labels), N_COLUMNS))
            writer.write_table(
                pa.table([np.ascontiguousarray(column) for column in rows.T], schema=schema)
            )


def run(path, n_jobs=None):
    """Run private-kmeans on one client."""
    strategy = fc.PrivateKMeans(n_clusters=N_CLUSTERS, epsilon=1.0, max_norm=60.0, min_clients=1)
    return fc.simulate(
        strategy, {"north": read_batches(path).rows}, seed=0, n_jobs=n_jobs, progress=False
    )


def peak():
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def only_read(path, n_jobs):
    """Read all rows into row-major batches; with two threads, one reads ahead."""
    source, waiting = read_batches(path).rows, Queue(2)
    step = 2**18 // N_COLUMNS

    def ahead():
        for batch in source.read(step):
            waiting.put(batch.rows)
        waiting.put(None)

    if n_jobs == 1:
        return sum(len(batch.rows) for batch in source.read(step))
    thread = threading.Thread(target=ahead)
    thread.start()
    n_rows = 0
    while (rows := waiting.get()) is not None:
        n_rows += len(rows)
    thread.join()
    return n_rows


def memory(path):
    """Print the peak memory of a run that writes its labels."""
    before, start = peak(), time.perf_counter()
    result = run(path)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        result.save(f"{folder}/result")
    n_rows = len(result.labels_of_clients[0])
    print(f"{n_rows:,} rows, {result.n_rounds} rounds: {result.seconds:.0f} s, with its metrics")
    print(f"{seconds:.0f} s; peak {peak():.0f} MB, of which {before:.0f} MB are the imports")


def rounds(path, n_times):
    """Print the shortest times of each task of a run and of only reading, measured in turn."""
    asked = {}
    reply = ByRow.reply

    def noting(self, question, source, **options):
        asked[question.answer.task] = (self, question, source, options)
        return reply(self, question, source, **options)

    ByRow.reply = noting
    run(path)
    ByRow.reply = reply
    for n_jobs in (1, 2):
        seconds = defaultdict(list)
        with jobs(n_jobs), one_thread():
            for _ in range(n_times):
                for task, compute in {"only reading": None, **asked}.items():
                    start, used = time.perf_counter(), time.process_time()
                    if compute is None:
                        only_read(path, n_jobs)
                    else:
                        by_row, question, source, options = compute
                        by_row.reply(question, source, **options)
                    seconds[task].append((time.perf_counter() - start, time.process_time() - used))
        base = np.min(seconds["only reading"], axis=0)
        for task, times in seconds.items():
            wall, cpu = np.min(times, axis=0)
            ratios = f"{wall / base[0]:5.2f} times reading; processor {cpu / base[1]:5.2f} times"
            print(f"{n_jobs} threads  {task:20} {wall:7.2f} s, {ratios}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["make", "memory", "rounds"])
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    if given.task == "make":
        make(given.path, given.rows)
    elif given.task == "memory":
        memory(given.path)
    else:
        rounds(given.path, given.times)
