"""A SuperLink of a test's own, with a Flower home of its own, on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def checkout(folder: Path) -> Path:
    """Copy what the repository holds: Flower would look at every file of its history and of its environment."""
    besides = shutil.ignore_patterns(
        ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "_build", "results"
    )
    return Path(shutil.copytree(ROOT, folder / "checkout", ignore=besides, dirs_exist_ok=True))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


#: In seconds. A SuperLink starts in 2.4 s with five busy processes on two cores, and in more than a minute with twenty.
PATIENCE = 180.0


class Deployment:
    """A SuperLink and what is needed to start SuperNodes and runs."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.port = free_port()
        self.start(
            "superlink",
            "flower-superlink",
            "--insecure",
            # Tests of deployments use the packages of their own environment. Installing them again from the index would
            # take longer than the runs. test_apps_newcomer.py runs apps without this.
            "--disable-runtime-dependency-installation",
            *("--port", str(self.port)),
            *options,
        )
        self.wait_until(self._listens, "superlink")
        (folder / "flwr").mkdir(exist_ok=True)
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.processes[name] = process

    def supernode(self, name: str, data: Path) -> None:
        port = free_port()
        self.start(
            name,
            "flower-supernode",
            "--insecure",
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--port", str(port)),
            *(
                "--node-config",
                f'name="{name}" data="{data}" label-column="kind" evaluation="true"',
            ),
        )

    def wait_until(
        self, is_ready: Callable[[], bool], *names: str, seconds: float = PATIENCE
    ) -> None:
        """Return when something is ready; fail with the logs of processes if one has ended, or if it takes too long."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            ended = [name for name in names if self.processes[name].poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "\n".join(
                    (self.folder / f"{name}.log").read_text(errors="replace")
                    for name in ended or names
                )
                self.stop()
                raise TimeoutError(
                    f"{', '.join(ended or names)}: {'ended' if ended else 'not ready in time'}\n{said}"
                )
            time.sleep(0.2)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait_for_supernodes(self, *names: str, seconds: float = PATIENCE) -> None:
        """Return when the SuperLink knows them all."""
        logs = [self.folder / f"{name}.log" for name in names]
        self.wait_until(
            lambda: all(b"SuperNode ID" in log.read_bytes() for log in logs),
            *names,
            seconds=seconds,
        )

    def submit(self, name: str, *options: str, **config: object) -> subprocess.Popen[bytes]:
        """Submit a run, and return the process that shows what it says; it is in the file NAME.log."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        app = str(checkout(self.folder))
        self.start(name, "flwr", "run", app, "here", "--stream", "--run-config", pairs, *options)
        return self.processes[name]

    def said(self, name: str) -> str:
        """Return what a process has said until now, without colours."""
        return re.sub(
            r"\x1b\[[0-9;]*m", "", (self.folder / f"{name}.log").read_text(errors="replace")
        )

    def wait_for_round(self, name: str, number: int) -> None:
        """Return when a SuperNode has received its message of a round; what a run itself says is shown later."""
        self.wait_until(lambda: f"ROUND {number}]" in self.said(name), name, seconds=300)

    def run(self, *options: str, **config: object) -> str:
        """Submit a run, wait for its end, and return what it has said."""
        self.submit("run", *options, **config).wait(timeout=540)
        return self.said("run")

    def kill_server_apps(self) -> None:
        """Kill (-9) the processes in which the SuperLink runs the servers' side of runs."""
        for process in psutil.Process(self.processes["superlink"].pid).children(recursive=True):
            if "flwr-serverapp" in " ".join(process.cmdline()):
                process.kill()

    def state(self, output: str) -> dict[str, Any]:
        """Return what the SuperLink says of the run that has said this."""
        (number,) = re.findall(r"^Successfully started run (\d+)", output, re.MULTILINE)
        done = subprocess.run(
            [str(BIN / "flwr"), "list", "here", "--run-id", number, "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        (run,) = json.loads(done.stdout)["runs"]
        return run

    def stop(self) -> None:
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
