"""Ctrl-C in every engine: the run ends at once, says what has left the clients, and goes on with a journal."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import flower_fedclust as fc

#: Arguments: the engine, the rounds, the journal ("" for none), and the round to wait in for a signal (0 for none).
PROGRAM = """
import sys, time
import numpy as np
import flower_fedclust as fc

def rows():
    return {name: np.random.default_rng(index).normal(size=(200, 4)) for index, name in enumerate("abcd")}

if __name__ == "__main__":
    engine, n_rounds, journal, wait_in = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None, int(sys.argv[4])
    strategy = fc.FederatedKMeans(3, n_rounds=n_rounds, tol=0.0)

    def said(number, task):
        print("round", number, flush=True)
        if number == wait_in:
            time.sleep(60)  # Ctrl-C comes meanwhile

    strategy.on_round = said
    try:
        result = fc.simulate(strategy, rows(), engine=engine, journal=journal, seed=0, progress=False)
    except KeyboardInterrupt as error:
        print("interrupted:", error.privacy_report.notes[-1], flush=True)
        sys.exit(130)
    print("centers", result.model.cluster_centers_.tobytes().hex(), flush=True)
"""


def begin(engine, n_rounds=4, journal="", wait_in=0):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, engine, str(n_rounds), str(journal), str(wait_in)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # So that the signal reaches all processes of the run, as a terminal's does.
        start_new_session=True,
    )


def interrupted(process, number):
    """Send Ctrl-C to a run in a round, and return what it says."""
    for line in process.stdout:
        if line.startswith(f"round {number}"):
            break
    else:
        raise AssertionError("the run has ended")
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    return said


def rows():
    return {
        name: np.random.default_rng(index).normal(size=(200, 4))
        for index, name in enumerate("abcd")
    }


def check_interrupted(process, said):
    assert process.returncode == 130, said
    assert "interrupted: The run ended early, in round" in said
    assert "centers" not in said


@pytest.mark.long
@pytest.mark.parametrize("engine", ["inline", "shards", "ray"])
def test_ctrl_c_ends_a_run_with_its_report(engine):
    process = begin(engine, n_rounds=5000)
    check_interrupted(process, interrupted(process, 4))


@pytest.mark.parametrize("engine", ["inline", pytest.param("shards", marks=pytest.mark.long)])
def test_a_run_that_was_interrupted_has_its_report_and_goes_on_with_the_same_bits(engine, tmp_path):
    process = begin(engine, journal=tmp_path / "journal", wait_in=4)
    check_interrupted(process, interrupted(process, 4))

    strategy, begun = fc.FederatedKMeans(3, n_rounds=4, tol=0.0), []
    strategy.on_round = lambda number, task: begun.append(number)
    found = fc.simulate(
        strategy, rows(), engine=engine, journal=tmp_path / "journal", seed=0, progress=False
    )
    whole = fc.simulate(fc.FederatedKMeans(3, n_rounds=4, tol=0.0), rows(), seed=0)
    assert begun[0] == 5  # what the journal holds is not asked again
    np.testing.assert_array_equal(found.model.cluster_centers_, whole.model.cluster_centers_)
