"""Break a real deployment on this machine, and say what its run, its sites and their ledgers do.

    python benchmarks/broken_deployments.py FAULT FOLDER [--sites N]

FOLDER must be new. FAULT is "kill" (kill -9 of a site while it answers), "frozen" (a site stands still for two
minutes), "late" (only the process that computes an answer stands still for two minutes), "full" (no room for results),
"full-journal" (no room for the journal; both need root, for a small file system), "masks" (a site with secure =
"required" is stopped and started again in the middle of a secure sum) or "none" (nothing; for many sites).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
from sklearn.datasets import make_blobs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "apps"))
from apps_deployment import BIN, Deployment, checkout, free_port

from flower_fedclust.site.app import Site
from flower_fedclust.site.policy import SiteSettings

STRATEGY, N_PUBLIC, PAUSE = "dp-lloyd-sphere-packing", 60, 120
START = time.monotonic()

POLICY = """
[policy]
strategies = ["dp-lloyd-sphere-packing"]
studies = ["broken"]
epsilon_per_run = 1.0
epsilon = 1.0
delta = 3e-6
fewest_rows = 20
fewest_clients = 2
"""


def say(*words: object) -> None:
    """Print what has happened, after how many seconds."""
    print(f"[{time.monotonic() - START:4.0f} s]", *words, flush=True)


class Sites:
    """The sites of a deployment, as processes."""

    def __init__(self, folder: Path, n_sites: int, *, secure: bool) -> None:
        self.folder, self.names = folder, [f"site-{index:02d}" for index in range(n_sites)]
        rows, _ = make_blobs(
            100 * n_sites + N_PUBLIC, n_features=4, centers=3, center_box=(-3, 3), random_state=0
        )
        table = pd.DataFrame(rows, columns=list("abcd"))
        table[:N_PUBLIC].to_csv(folder / "public.csv", index=False)
        for index, name in enumerate(self.names):
            (folder / name).mkdir()
            table[N_PUBLIC + index :: n_sites].to_csv(folder / name / "table.csv", index=False)
            text = f'name = "{name}"\ndata = "table.csv"\n{POLICY}'
            masks = 'secure = "required"\nmost_shares = 3\n' if secure else ""
            (folder / name / "site.toml").write_text(text + masks)
            Site(SiteSettings.from_toml(folder / name / "site.toml")).create_ledger()
        self.deployment = Deployment(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in self.names:
            self.start(name)
        self.deployment.wait_for_supernodes(*self.names, seconds=600)

    def start(self, name: str) -> None:
        """Start a site, or start it again."""
        options = [
            "--insecure",
            "--superlink",
            f"127.0.0.1:{self.deployment.port}",
            "--port",
            str(free_port()),
        ]
        self.deployment.start(
            name, "fedclust", "site", str(self.folder / name / "site.toml"), *options
        )
        self.processes[name] = self.deployment.processes[name]

    def n_lines(self, name: str) -> int:
        """Return how many lines a site's ledger has."""
        return (self.folder / name / "site" / "ledger.jsonl").read_text().count("\n")

    def submit(self, **config: object) -> subprocess.Popen[bytes]:
        """Submit a run, and return the process that waits for it."""
        config = {
            "strategy": STRATEGY,
            "study": "broken",
            "dataset": "",
            "n-clusters": 3,
            "epsilon": "1",
        } | config
        config |= {
            "server-data": str(self.folder / "public.csv"),
            "expected-clients": len(self.names),
        }
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = [
            str(BIN / "flwr"),
            "run",
            str(checkout(self.folder)),
            "here",
            "--stream",
            "--run-config",
            pairs,
        ]
        with (self.folder / "run.log").open("wb") as log:
            return subprocess.Popen(
                command, env=self.deployment.environment, stdout=log, stderr=subprocess.STDOUT
            )


def breaks(fault: str, sites: Sites, run: subprocess.Popen[bytes]) -> None:
    """Break the first site in the middle of a run."""
    name = sites.names[0]
    before = sites.n_lines(name)
    while sites.n_lines(name) < before + (2 if fault == "late" else 3) and run.poll() is None:
        time.sleep(0.02)
    site = sites.processes[name]
    if fault in ("kill", "masks"):
        os.killpg(site.pid, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
        site.wait()
        say(
            f"{name} has ended, with {sites.n_lines(name) - before} lines in its ledger since the run began"
        )
        while run.poll() is None:
            sites.start(name)
            time.sleep(30)
            if sites.processes[name].poll() is None:
                say(f"{name} runs again")
                return
    processes = psutil.Process(site.pid).children(recursive=True)
    if fault == "frozen":
        processes.append(psutil.Process(site.pid))
    for process in processes:
        process.suspend()
    say(f"{len(processes)} processes of {name} stand still")
    time.sleep(PAUSE)
    for process in processes:
        if process.is_running():
            process.resume()
    say("and go on")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 48 kB, for which the system's administrator is needed."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def tell(sites: Sites, run: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the run, and print how it ended."""
    run.wait(900)
    said = re.sub(r"\x1b\[[0-9;]*m", "", (sites.folder / "run.log").read_text())
    say("the run has ended")
    state = sites.deployment.state(said)
    print(f"{state['status']}: {state['status-details'][:300]}")
    print(
        "\n".join(
            line[:200]
            for line in said.splitlines()
            if re.search(r"failed in round|did not answer|Error", line)
        )
    )
    for name in sites.names[:3]:
        command = [str(BIN / "fedclust"), "ledger", "show", str(sites.folder / name / "site.toml")]
        print(
            name,
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
                -1
            ],
        )


def main() -> None:
    """Break one deployment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "fault", choices=["kill", "frozen", "late", "full", "full-journal", "masks", "none"]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sites", type=int, default=3)
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    folder.mkdir()
    sites = Sites(folder, asked.sites, secure=asked.fault == "masks")
    try:
        say(f"{asked.sites} sites are connected")
        noise = "clients" if asked.fault == "masks" else "local"
        config = {
            "parameters": f"n_rounds = {1 if asked.fault == 'none' else 4}\nnoise = '{noise}'"
        }
        config |= {
            "secure": asked.fault == "masks",
            "out": str(folder / "out"),
            "wait-for-clients": 300.0,
        }
        if asked.fault.startswith("full"):
            with small_disk(folder / "small") as disk:
                config |= {"out": str(disk / "out")} | (
                    {"journal": str(disk / "journal")} if "-" in asked.fault else {}
                )
                tell(sites, sites.submit(**config))
            return
        run = sites.submit(**config)
        if asked.fault != "none":
            breaks(asked.fault, sites, run)
        tell(sites, run)
    finally:
        sites.deployment.stop()


if __name__ == "__main__":
    main()
