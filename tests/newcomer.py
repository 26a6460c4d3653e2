"""`flwr` as on a machine that has never seen this project: Flower's own settings, and a home folder that is empty."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent


class Newcomer:
    """Somebody with an empty home folder, who has set no variable of Flower or Ray.

    Before each run, their SuperLink installs what the app asks for. This needs the package index.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLWR_", "RAY_"))
        }
        own = {
            "HOME": str(home),
            "FLWR_HOME": str(home / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",  # tests send nothing to Flower's makers
            # The machine's own cache of packages, so that no test downloads them again.
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        }
        self.environment = kept | own | {"PATH": os.pathsep.join([str(BIN), kept["PATH"]])}

    def says(self, command: str | list[str], folder: Path, limit: float = 900) -> str:
        """Run a command in a folder, and return what it printed; raise a CalledProcessError if it fails."""
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=True,
        )
        return done.stdout

    @property
    def results(self) -> list[Path]:
        """The folders of the results that runs have saved; a run that failed has saved a report, but no result."""
        return sorted(path.parent for path in self.home.glob("fedclust-results/*/*/result.json"))

    def stop(self) -> None:
        """Stop what commands have left running: `flwr run` starts a local SuperLink that outlives it."""
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == self.environment["FLWR_HOME"]:
                    process.terminate()
                    left.append(process)
        psutil.wait_procs(left, timeout=10)
