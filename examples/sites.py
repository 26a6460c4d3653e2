"""A deployment on one machine: a SuperLink, three sites with a policy and a ledger of their own, and a run.

Everything that a real deployment has is a process of its own here, and speaks to the others over the loopback. For
several machines add certificates and keys, which Flower has. The tutorial "A deployment on one machine" explains it.

    python examples/sites.py FOLDER
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from pupils import pupils

from flower_fedclust.lab.new_app import write_app

SITE = """
name = "{name}"
data = "table.csv"
schema = "../columns.toml"

[policy]
strategies = ["private-kmeans"]
epsilon_per_run = 1.0
epsilon = 3.0               # of all runs together; then the site answers nothing any more
trusts_server_noise = true  # the server adds the noise, and the site cannot check that
"""


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(folder: Path) -> None:
    """Set up the sites and the server, run the study, and show what each site has of it."""
    folder.mkdir(parents=True)
    environment = os.environ | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    processes = []

    def start(name: str, *command: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))

    # What every site agrees on beforehand: the study's app, and what is public of the columns.
    app = write_app(folder / "study")
    schema = (Path(__file__).parent / "pupils.toml").read_text(encoding="utf-8")
    (folder / "columns.toml").write_text(schema, encoding="utf-8")
    (app / "columns.toml").write_text(schema, encoding="utf-8")

    # The server.
    port = free_port()
    start(
        "superlink", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", f"{port}"
    )
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )

    # The sites.
    table = pupils()
    for number, name in enumerate(("north", "south", "west")):
        (folder / name).mkdir()
        table.iloc[number::3].drop(columns="school").to_csv(folder / name / "table.csv", index=False)
        (folder / name / "site.toml").write_text(SITE.format(name=name), encoding="utf-8")
    time.sleep(10)
    for name in ("north", "south", "west"):
        site = ("fedclust", "site", str(folder / name / "site.toml"))
        start(name, *site, "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", f"{free_port()}")
    time.sleep(10)

    try:
        config = f'n-clusters=4 epsilon=1.0 out="{folder / "result"}"'
        subprocess.run(
            ["flwr", "run", str(app), "here", "--stream", "--run-config", config], env=environment, check=True
        )
        for name in ("north", "south", "west"):
            subprocess.run(
                ["fedclust", "ledger", "show", str(folder / name / "site.toml")], env=environment, check=True
            )
            print(*sorted(str(path) for path in (folder / name / "site").rglob("*.csv")), sep="\n")
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
