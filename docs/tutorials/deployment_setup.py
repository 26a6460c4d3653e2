"""Set up the notebook `deployment.md`: a new folder, free ports, a shell, made-up tables, and how to stop all."""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from IPython.core.magic import register_cell_magic

here = Path.cwd()
os.environ["REPOSITORY"] = str(
    next(folder for folder in (here, *here.parents) if (folder / "deploy").is_dir())
)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # goes when the notebook ends
os.chdir(folder.name)

probes = {name: socket.create_server(("127.0.0.1", 0)) for name in ("PORT", "NORTH", "SOUTH")}
for name, probe in probes.items():
    os.environ[name] = str(probe.getsockname()[1])
    probe.close()
os.environ["FLWR_HOME"] = str(Path.cwd() / "flwr")
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "COLUMNS": "110",
    "FORCE_COLOR": "",
    "CLICOLOR_FORCE": "",
}


rng = np.random.default_rng(0)


def write_stays(site, n_stays):
    """Write a hospital's table of made-up stays of three kinds."""
    kind = rng.choice(3, size=n_stays, p=[0.5, 0.3, 0.2])
    table = pd.DataFrame(
        {
            "age": rng.normal([30, 55, 80], 6, size=(n_stays, 3))[range(n_stays), kind]
            .clip(0, 110)
            .round(),
            "days": rng.gamma([2, 5, 9], 1.2, size=(n_stays, 3))[range(n_stays), kind]
            .clip(1, 60)
            .round(),
            "ward": np.array(["maternity", "surgery", "geriatrics"])[
                np.where(rng.random(n_stays) < 0.9, kind, 1)
            ],
        }
    )
    Path(site).mkdir()
    table.to_csv(f"{site}/stays.csv", index=False)


@register_cell_magic
def shell(_, cell):
    """Run commands of a shell, and show what they print in one piece."""
    done = subprocess.run(
        ["bash", "-c", cell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout, end="")
    done.check_returncode()


@atexit.register
def stop():
    """End all processes that this notebook has started."""
    processes = psutil.Process().children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=10)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
