"""The deployment of compose.yaml as processes on one machine: keys, a SuperLink with TLS, three sites, a run, results.

    python deploy/one_machine.py FOLDER [--strategy NAME] [--epsilon E] [--set KEY=VALUE ...]

FOLDER must be new. Every site gets a third of a made-up table, its own key and its own site.toml. After the run each
site has a model, labels of its own rows and a ledger in FOLDER/SITE/site; the server's result is in FOLDER/result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

try:
    import pandas as pd
    from sklearn.datasets import make_blobs
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}; install the package first, and use the Python that has it."
    ) from None

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SITES = ("north", "south", "west")
#: The default run.
STUDY = tomllib.loads((HERE / "first-study.toml").read_text(encoding="utf-8"))


def free_port() -> int:
    """Return a free port; each SuperNode on one machine needs its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 120.0
) -> None:
    """Wait until a process listens on a port; show its log if it has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise SystemExit(f"{log.name} ended:\n{log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.2)
    raise SystemExit(f"nothing listens on port {port}; see {log}")


class Deployment:
    """The processes of a deployment, all of which end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        }

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def call(self, *command: str) -> str:
        """Run a command and return its output; exit if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def start(self, name: str, port: int, *command: str) -> None:
        """Start a process that listens on a port, with a log of its own."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=self.environment
            )
        self.processes[name] = process
        wait_for(port, process, log)

    def start_all(self) -> None:
        """Make the keys, start the SuperLink, register the sites' keys, create their ledgers, start the sites."""
        self.call("sh", str(HERE / "keys.sh"), str(self.keys), "localhost", *SITES)
        self.start_superlink()
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.pem"}"\n'
        )
        for name in SITES:
            self.call(
                str(BIN / "flwr"),
                "supernode",
                "register",
                str(self.keys / name / "node.pub"),
                "here",
            )
            self.call(
                str(BIN / "fedclust"), "site", "--init", str(self.folder / name / "site.toml")
            )
            self.start_site(name)

    def start_superlink(self) -> None:
        """Start the SuperLink, which remembers the sites' keys if it is started again."""
        self.start(
            "superlink",
            self.port,
            *(str(BIN / "flower-superlink"), "--port", str(self.port), "--enable-supernode-auth"),
            *(
                "--ssl-ca-certfile",
                str(self.keys / "ca.pem"),
                "--ssl-certfile",
                str(self.keys / "superlink.pem"),
            ),
            *(
                "--ssl-keyfile",
                str(self.keys / "superlink.key"),
                "--disable-runtime-dependency-installation",
            ),
            *("--database", str(self.folder / "superlink.db")),
        )

    def start_site(self, name: str) -> None:
        """Start a site, or start it again."""
        port = free_port()
        self.start(
            name,
            port,
            *(str(BIN / "fedclust"), "site", str(self.folder / name / "site.toml")),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(port)),
            *("--root-certificates", str(self.keys / "ca.pem")),
            *("--auth-supernode-private-key", str(self.keys / name / "node")),
        )

    def run(self, app: Path = HERE.parent, **config: object) -> str:
        """Submit a run of an app and wait for its end; raise SystemExit if it fails."""
        file = self.folder / "run.toml"
        file.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()),
            encoding="utf-8",
        )
        said = self.call(
            str(BIN / "flwr"), "run", str(app), "here", "--stream", "--run-config", str(file)
        )
        # `flwr run` ends with 0, however the run ended.
        (number,) = re.findall(r"^Successfully started run (\d+)", said, re.MULTILINE)
        listed = self.call(
            str(BIN / "flwr"), "list", "here", "--run-id", number, "--format", "json"
        )
        (run,) = json.loads(listed)["runs"]
        if run["status"] != "finished:completed":
            raise SystemExit(f"{said[-5000:]}\nthe run is {run['status']}: {run['status-details']}")
        return said


def make_sites(folder: Path, strategy: str, epsilon: float) -> None:
    """Write each site's table and its site.toml."""
    rows, _ = make_blobs(
        600, n_features=4, centers=3, cluster_std=0.6, center_box=(-3, 3), random_state=0
    )
    table = pd.DataFrame(rows, columns=["a", "b", "c", "d"])
    for index, name in enumerate(SITES):
        (folder / name).mkdir(parents=True)
        table[index::3].to_csv(folder / name / "table.csv", index=False)
        text = (HERE / "sites" / name / "site.toml").read_text(encoding="utf-8")
        text = text.replace('"private-kmeans"', f'"{strategy}"').replace("= 1.0", f"= {epsilon}")
        (folder / name / "site.toml").write_text(
            text.replace("epsilon = 3.0", f"epsilon = {3 * epsilon}")
        )


def main() -> None:
    """Run the deployment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strategy", default="private-kmeans")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--set", action="append", default=[], help="a parameter, as TOML: name=value"
    )
    options = parser.parse_args()
    folder = options.folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} already holds something; name a new folder.")
    if shutil.which("openssl") is None or shutil.which("ssh-keygen") is None:
        raise SystemExit("openssl and ssh-keygen are needed to make keys.")
    make_sites(folder, options.strategy, options.epsilon)
    with Deployment(folder) as deployment:
        start = time.monotonic()
        deployment.start_all()
        print(
            f"a SuperLink with TLS and {len(SITES)} sites with keys run after {time.monotonic() - start:.0f} s"
        )
        asked = STUDY | {
            "strategy": options.strategy,
            "epsilon": str(options.epsilon),
            "out": str(folder / "result"),
        }
        if options.set or options.strategy != STUDY["strategy"]:
            asked["parameters"] = "\n".join(["noise = 'local'", *options.set])
        deployment.run(**asked)
        print(
            f"the run has ended after {time.monotonic() - start:.0f} s; the server's result is in {folder / 'result'}"
        )
    for name in SITES:
        (own,) = (folder / name / "site" / "results").iterdir()
        labels = pd.read_csv(own / "labels" / f"{name}.csv")["cluster"]
        print(f"{name}: {len(labels)} labels, {labels.nunique()} clusters, in {own}")
        print(
            deployment.call(
                str(BIN / "fedclust"), "ledger", "show", str(folder / name / "site.toml")
            ).splitlines()[-1]
        )


if __name__ == "__main__":
    main()
