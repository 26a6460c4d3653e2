"""Real sites: every family of strategies in a deployment, and what happens when its processes are killed.

    python benchmarks/deployed.py strategies [NAME ...]
    python benchmarks/deployed.py in-process [NAME ...]
    python benchmarks/deployed.py kills [server] [sites] [written] [superlink]

``strategies`` starts a SuperLink with TLS and three sites (``fedclust site``), as ``deploy/one_machine.py`` does, and
runs every family twice: with a policy that sends nothing without noise and, where that refuses, with a policy that
lists the kinds of messages which the family sends. ``in-process`` does the same without a network, in minutes.
``kills`` kills processes (kill -9) in a run of five rounds without noise: the server process in every round, each
site while it answers and just after it has written its answer, and the SuperLink. Each time the same command
continues, and the labels have to equal those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_blobs

from flower_fedclust.engine import ProtocolError
from flower_fedclust.site.ledger import Ledger

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "deploy"))
one_machine = import_module("one_machine")
SITES = one_machine.SITES


@dataclass(frozen=True)
class Family:
    """How a family runs: epsilon, other parameters as TOML, and what a policy must allow without noise."""

    epsilon: float | None = None
    parameters: str = ""
    reads_public_rows: bool = False
    row_count: bool = False
    #: Whether what it promises is for rows that are replaced.
    replaces: bool = False
    kinds: tuple[str, ...] = field(default=())


FAMILIES = {
    "private-kmeans": Family(1.0, "noise = 'local'\nmax_norm = 12.0"),
    "private-mixture": Family(1.0, "noise = 'local'\nmax_norm = 12.0"),
    "private-density": Family(8.0, "noise = 'local'\nmax_norm = 12.0"),
    "feddp-kmeans": Family(4.0, "noise = 'local'\nn_rounds = 1", reads_public_rows=True),
    "feddp-kmeans-proofs": Family(4.0, "noise = 'local'\nn_rounds = 1", reads_public_rows=True),
    "dp-lloyd-server-kmeans++": Family(
        4.0, "noise = 'local'\nn_rounds = 1", reads_public_rows=True
    ),
    "dp-fedc": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 2", replaces=True),
    "dp-fedc-printed": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 2", replaces=True),
    "fedsc": Family(None, "n_rounds = 1\nn_atoms = 5", kinds=("sums", "codes")),
    "fedsc-sums": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 1"),
    "spp-fgc": Family(None, "", kinds=("centers", "codes")),
    "spp-fgc-sums": Family(8.0, "noise = 'local'\nmax_l1_norm = 12.0"),
    "spp-fgc-plus": Family(
        None, "n_rounds = 1\nn_pretraining_rounds = 1", kinds=("sums", "centers", "codes")
    ),
    "fed-tsne-sums": Family(8.0, "noise = 'local'\nmax_norm = 8.0"),
    "fed-umap-sums": Family(8.0, "noise = 'local'\nmax_norm = 8.0"),
    "fed-speclust-sums": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 1"),
    "fed-tsne": Family(None, "n_rounds = 1", kinds=("sums", "codes")),
    "pe-means": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 1"),
    "federated-kmeans-private": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 1"),
    "federated-kmeans": Family(None, "n_rounds = 1", kinds=("sums",)),
    "ffcm": Family(None, "n_rounds = 1", kinds=("sums", "centers")),
    "k-fed": Family(None, "", kinds=("centers",)),
    "coreset-k-median": Family(None, "", kinds=("sums", "centers", "codes", "rows")),
    "dsc": Family(None, "", kinds=("centers", "codes")),
    "fed-ssc": Family(None, "", kinds=("centers", "codes")),
    "k-means-parallel": Family(None, "", kinds=("sums", "rows")),
    "pooled-kmeans": Family(None, "", kinds=("rows",)),
    "dp-fedc-theorem-2": Family(
        None, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 2\nround_epsilon = 0.2", kinds=("sums",)
    ),
    "fedsc-perturbed-data": Family(
        8.0, "n_rounds = 1\nn_atoms = 5\nmax_norm = 8.0", row_count=True, replaces=True
    ),
    "fedsc-perturbed-factors": Family(
        8.0, "n_rounds = 1\nn_atoms = 5\nmax_norm = 8.0", row_count=True, replaces=True
    ),
    "fed-umap": Family(None, "n_rounds = 1", kinds=("sums", "codes")),
    "fed-speclust": Family(None, "n_rounds = 1", kinds=("sums", "codes")),
    "fed-tsne-perturbed": Family(
        8.0, "n_rounds = 1\nmax_norm = 8.0", row_count=True, replaces=True
    ),
    "fed-umap-perturbed": Family(
        8.0, "n_rounds = 1\nmax_norm = 8.0", row_count=True, replaces=True
    ),
    "fed-speclust-perturbed": Family(
        8.0, "n_rounds = 1\nmax_norm = 8.0", row_count=True, replaces=True
    ),
    "spp-fgc-private-prototypes": Family(8.0, "max_l1_norm = 12.0", kinds=("codes",)),
    "spp-fgc-printed": Family(None, "", kinds=("centers", "codes")),
    "central-lsh": Family(None, "max_entry = 6.0\ncentral_epsilon = 1.0", kinds=("rows",)),
    "central-dp-lloyd": Family(None, "max_entry = 6.0\ncentral_epsilon = 1.0", kinds=("rows",)),
    "central-fastlloyd": Family(None, "max_entry = 6.0\ncentral_epsilon = 1.0", kinds=("rows",)),
    "dp-lloyd-server-lloyds": Family(4.0, "noise = 'local'\nn_rounds = 1", reads_public_rows=True),
    "dp-lloyd-sphere-packing": Family(4.0, "noise = 'local'\nn_rounds = 1", reads_public_rows=True),
    "ffcm-private": Family(8.0, "noise = 'local'\nmax_norm = 8.0\nn_rounds = 1"),
    "pooled-spectral": Family(None, "", kinds=("rows",)),
    "ppfc-gan": Family(None, "", kinds=("codes",)),
}


def make_sites(folder: Path) -> None:
    """Write the sites' tables, a third each of three blobs without negative entries, and some public rows."""
    rows, _ = make_blobs(
        630, n_features=4, centers=3, cluster_std=0.5, center_box=(1, 6), random_state=0
    )
    table = pd.DataFrame(np.maximum(rows, 0.0), columns=["a", "b", "c", "d"])
    for index, name in enumerate(SITES):
        (folder / name).mkdir(parents=True)
        table[index:600:3].to_csv(folder / name / "table.csv", index=False)
    table[600:].to_csv(folder / "public.csv", index=False)


def write_policies(folder: Path, strategy: str, family: Family, *, careful: bool) -> None:
    """Let every site take part in one strategy; a site reads its policy for each message."""
    epsilon, unprotected = family.epsilon or 1.0, () if careful else family.kinds
    row_count = str(family.row_count and not careful).lower()
    relations = ["add-or-remove", *(["replace"] if family.replaces and not careful else [])]
    for name in SITES:
        (folder / name / "site.toml").write_text(
            f'name = "{name}"\ndata = "table.csv"\ndata_set = "for {strategy}, {careful}"\n\n[policy]\n'
            f'strategies = ["{strategy}"]\nstudies = ["first-study"]\nunprotected = {json.dumps(unprotected)}\n'
            f"row_count = {row_count}\nrelations = {json.dumps(relations)}\n"
            f"epsilon_per_run = {epsilon}\nepsilon = {epsilon}\nfewest_clients = 3\n[limits]\nruns_per_day = 1000\n",
            encoding="utf-8",
        )


def submit(deployment: Any, strategy: str, out: Path, **config: object) -> str:
    """Run a strategy; return its output, whether the run succeeded or not."""
    given = {
        "strategy": strategy,
        "study": "first-study",
        "dataset": "",
        "n-clusters": 3,
        "expected-clients": 3,
    }
    try:
        return str(
            deployment.run(
                **given | {"round-timeout": 900.0, "share-model": True, "out": str(out)} | config
            )
        )
    except SystemExit as error:
        return str(error)


def refusals(folder: Path, since: dict[str, int]) -> list[str]:
    """Return the sites' refusals since then, each sentence once."""
    said = []
    for name in SITES:
        log = folder / name / "site" / "audit.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        events = [json.loads(line) for line in lines[since.get(name, 0) :]]
        said += [
            f"{one['event']}: {one['reason']}"
            for one in events
            if one["event"] in ("refused", "failed")
        ]
        since[name] = len(lines)
    return list(dict.fromkeys(said))


def policies_of(family: Family) -> dict[str, bool]:
    """Tell whether a policy is the careful one, which sends nothing without noise."""
    lets = [*family.kinds, *(["the number of rows"] if family.row_count else [])]
    lets += ["rows that are replaced"] if family.replaces else []
    return {"nothing": True} | ({", ".join(lets): False} if lets else {})


def strategies(names: list[str]) -> None:
    """Run the families."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "deployment"
        make_sites(folder)
        write_policies(folder, "none", Family(), careful=True)
        since: dict[str, int] = {}
        with one_machine.Deployment(folder) as deployment:
            deployment.start_all()
            for strategy in names or FAMILIES:
                family = FAMILIES[strategy]
                for lets, careful in policies_of(family).items():
                    write_policies(folder, strategy, family, careful=careful)
                    start, out = time.monotonic(), folder / f"{strategy}-{careful}"
                    epsilon = "" if family.epsilon is None else str(family.epsilon)
                    public = (
                        {"server-data": str(folder / "public.csv")}
                        if family.reads_public_rows
                        else {}
                    )
                    said = submit(
                        deployment,
                        strategy,
                        out,
                        epsilon=epsilon,
                        parameters=family.parameters,
                        **public,
                    )
                    own = [
                        any((folder / name / "site" / "results").glob(f"* {strategy} *"))
                        for name in SITES
                    ]
                    saved = (out / strategy / "model.npz").exists() and all(own)
                    ending = "results at the server and at every site" if saved else "no result"
                    print(
                        f"{strategy} | {lets} | {ending} | {time.monotonic() - start:.0f} s",
                        flush=True,
                    )
                    show_reasons(refusals(folder, since), "" if saved else said)


def in_process(names: list[str]) -> None:
    """Run the families over the same sites in this process, without a network."""
    sys.path.insert(0, str(ROOT / "tests" / "site"))
    run = import_module("hostile").run
    from flower_fedclust.registry import make_strategy
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "sites"
        make_sites(folder)
        since: dict[str, int] = {}
        for name in names or FAMILIES:
            family = FAMILIES[name]
            given: dict[str, Any] = tomllib.loads(family.parameters) | {"n_clusters": 3}
            given |= {} if family.epsilon is None else {"epsilon": family.epsilon}
            if family.reads_public_rows:
                given["server_data"] = pd.read_csv(folder / "public.csv").to_numpy()
            for lets, careful in policies_of(family).items():
                write_policies(folder, name, family, careful=careful)
                sites = [Site(SiteSettings.from_toml(folder / one / "site.toml")) for one in SITES]
                for one in sites:
                    if not one.ledger.path.exists():
                        one.create_ledger()
                strategy, said = make_strategy(name, **given), ""
                strategy.share_model = True
                with contextlib.suppress(ProtocolError):
                    run(strategy, sites, study="first-study")
                own = [
                    any((folder / one / "site" / "results").glob(f"* {name} *")) for one in SITES
                ]
                n_rounds = len({message.round for message in strategy.report.messages})
                ending = f"results at every site, {n_rounds} rounds" if all(own) else "no result"
                print(f"{name} | {lets} | {ending}", flush=True)
                show_reasons(refusals(folder, since), said)


def show_reasons(refused: list[str], said: str) -> None:
    """Print the sites' refusals or, if there are none, how a run without a result ended."""
    wrong = [line.strip() for line in said.splitlines() if "Error" in line][-2:] or [
        said[-1500:].strip()
    ]
    for sentence in refused or wrong:
        if sentence:
            print(f"    {sentence}", flush=True)


# Killing.

INIT = [[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0], [5.0, 5.0, 5.0, 5.0]]
#: Enrolment, three rounds that find a frame, a Lloyd step.
RUN = {
    "parameters": f"n_rounds = 1\nmin_clients = 3\ninit = {INIT}",
    "round-timeout": 60.0,
    "wait-for-clients": 120.0,
}
KILLED = "federated-kmeans"


def descendants(process: int) -> dict[int, str]:
    """Return the descendants of a process and their commands."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    parents, commands = {}, {}
    for line in listed.splitlines():
        own, parent, command = line.split(None, 2)
        parents[int(own)], commands[int(own)] = int(parent), command
    below = {process}
    while more := {own for own, parent in parents.items() if parent in below} - below:
        below |= more
    return {own: commands[own] for own in below - {process}}


def kill(*processes: int) -> None:
    """Kill -9."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_until(
    found: Callable[[], Any], submitted: subprocess.Popen[str], seconds: float = 180.0
) -> Any:
    """Wait until something is found; return None once the run has ended or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and submitted.poll() is None:
        if value := found():
            return value
        time.sleep(0.005)
    return None


class Killing:
    """A deployment in which runs of one strategy are interrupted and continued."""

    def __init__(self, deployment: Any, folder: Path) -> None:
        self.deployment, self.folder = deployment, folder
        self.n_runs = 0

    def begin(self) -> None:
        """Make the next submission a new run."""
        self.n_runs += 1
        self.n_before = {name: len(self.entries(name)) for name in SITES}

    @property
    def out(self) -> Path:
        return self.folder / f"result-{self.n_runs}"

    def submit(self) -> subprocess.Popen[str]:
        """Submit the run, or continue it."""
        config = {
            "strategy": KILLED,
            "study": "first-study",
            "dataset": "",
            "n-clusters": 3,
            "expected-clients": 3,
        }
        config |= {
            "share-model": True,
            "out": str(self.out),
            "journal": str(self.folder / f"journal-{self.n_runs}"),
        }
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in (config | RUN).items())
        return subprocess.Popen(
            [str(one_machine.BIN / "flwr"), "run", str(ROOT), "here", "--stream", "--run-config", pairs],
            env=self.deployment.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return what has left a site, according to its ledger."""
        return [
            entry
            for entry in Ledger(self.folder / name / "site" / "ledger.jsonl").read()
            if entry.get("sent")
        ]

    def rounds(self, name: str) -> list[int]:
        """Return the rounds of this run that a site has answered."""
        return [entry["round"] for entry in self.entries(name)[self.n_before[name] :]]

    def process(self, name: str) -> int:
        return int(self.deployment.processes[name].pid)

    def found(self) -> list[bytes]:
        """Return the saved centers of the server and labels of each site; empty while there are none."""
        model = self.out / KILLED / "model.npz"
        own = [sorted((self.folder / name / "site" / "results").glob("*")) for name in SITES]
        if not model.exists() or [len(one) for one in own] != 3 * [self.n_runs]:
            return []
        labels = [
            (one[-1] / "labels" / f"{name}.csv").read_bytes()
            for name, one in zip(SITES, own, strict=True)
        ]
        with np.load(model) as arrays:
            return [*(arrays[name].tobytes() for name in arrays.files), *labels]

    def to_the_end(self, submitted: subprocess.Popen[str] | None = None) -> int:
        """Continue until there is a result; return how many times the command ran."""
        for n_given in range(1, 6):
            submitted = submitted or self.submit()
            said, _ = submitted.communicate(timeout=900)
            deadline = time.monotonic() + 20  # a site saves its own result after the run has ended
            while time.monotonic() < deadline:
                if self.found():
                    return n_given
                time.sleep(0.5)
            submitted = None
        raise SystemExit(f"no result:\n{said[-3000:]}")

    def kill_the_server(self, number: int) -> bool:
        """Submit the run and kill its server while a round is open; tell whether a round was open."""
        submitted = self.submit()
        seen = wait_until(lambda: number in self.rounds("north"), submitted)
        below = descendants(self.process("superlink"))
        kill(*(own for own, command in below.items() if "flwr-serverapp" in command))
        submitted.kill()
        submitted.communicate()
        return bool(seen)

    def kill_a_site(self, name: str, number: int, *, written: bool) -> subprocess.Popen[str]:
        """Submit the run and kill a site in a round: when it begins to answer, or after it wrote its ledger."""
        submitted = self.submit()

        def reached() -> bool:
            if written:
                return number in self.rounds(name)
            begun = any(
                "flwr-clientapp" in command for command in descendants(self.process(name)).values()
            )
            return begun and number - 1 in self.rounds(name)

        assert wait_until(reached, submitted), "the round was not reached"
        kill(self.process(name), *descendants(self.process(name)))
        self.deployment.processes[name].wait()
        threading.Thread(target=self.keep_up, args=[name], daemon=True).start()
        return submitted

    def keep_up(self, name: str) -> None:
        """Start a site again until it stays, as ``restart: unless-stopped`` of the containers does.

        Flower's SuperLink takes the key of a SuperNode that was killed for one that is there, for about a minute, and
        the SuperNode that comes again with it ends.
        """
        n_started, begun, last = 0, time.monotonic(), time.monotonic()
        while time.monotonic() < last + 30:
            if self.deployment.processes[name].poll() is not None:
                n_started += 1
                with contextlib.suppress(SystemExit):
                    self.deployment.start_site(name)
                last = time.monotonic()
            time.sleep(1)
        print(
            f"    {name} was started {n_started} times in {last - begun:.0f} s until it was let in",
            flush=True,
        )

    def kill_the_superlink(self, number: int) -> None:
        """Submit the run, kill the SuperLink with all its processes in a round, and restart it."""
        submitted = self.submit()
        assert wait_until(lambda: number in self.rounds("north"), submitted), (
            "the round was not reached"
        )
        kill(self.process("superlink"), *descendants(self.process("superlink")))
        submitted.kill()
        submitted.communicate()
        self.deployment.processes["superlink"].wait()
        self.deployment.start_superlink()


def kills(what: list[str]) -> None:
    """Kill, continue, and compare."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "deployment"
        make_sites(folder)
        write_policies(folder, KILLED, Family(kinds=("sums",)), careful=False)
        with one_machine.Deployment(folder) as deployment:
            deployment.start_all()
            killing = Killing(deployment, folder)
            killing.begin()
            killing.to_the_end()
            whole = killing.found()
            print(f"undisturbed: rounds {sorted(set(killing.rounds('north')))}", flush=True)

            def compare(case: str, n_given: int, start: float) -> None:
                same = "the same labels and centers" if killing.found() == whole else "OTHER LABELS"
                seconds = time.monotonic() - start
                print(
                    f"{case}: {same}; the command was given {n_given} times, {seconds:.0f} s",
                    flush=True,
                )

            if "server" in what:
                killing.begin()
                start = time.monotonic()
                seen = [number for number in range(1, 6) if killing.kill_the_server(number)]
                compare(
                    f"server process killed in rounds {seen} of one run",
                    len(seen) + killing.to_the_end(),
                    start,
                )
            for index, name in enumerate(SITES):
                for written in [
                    moment == "written" for moment in ("sites", "written") if moment in what
                ]:
                    killing.begin()
                    start = time.monotonic()
                    number = 2 + index + written
                    submitted = killing.kill_a_site(name, number, written=written)
                    moment = (
                        "after its answer was written down" if written else "as it began to answer"
                    )
                    compare(
                        f"{name} killed in round {number}, {moment}",
                        killing.to_the_end(submitted),
                        start,
                    )
            if "superlink" in what:
                killing.begin()
                start = time.monotonic()
                killing.kill_the_superlink(3)
                compare(
                    "SuperLink killed in round 3, and started again",
                    1 + killing.to_the_end(),
                    start,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["strategies", "in-process", "kills"])
    parser.add_argument("names", nargs="*", help="strategies; or server, sites, written, superlink")
    options = parser.parse_args()
    if options.part == "kills":
        kills(options.names or ["server", "sites", "written", "superlink"])
    else:
        (strategies if options.part == "strategies" else in_process)(options.names)


if __name__ == "__main__":
    main()
