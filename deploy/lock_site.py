"""Write deploy/site-requirements.txt: what a site installs, with hashes. `make site-requirements`; it asks the index.

A site needs no Ray, which only simulations use.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy" / "site-requirements.txt"

ABOVE = """\
# What a site installs, with hashes; made by `make site-requirements`. Ray is left out: only simulations need it.
#   pip install --require-hashes -r deploy/site-requirements.txt
#   pip install --no-deps flower-fedclust
"""


def requirements():
    """Return what a site needs: the package's dependencies without Ray, and what its metrics need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
    return [one.replace("flwr[simulation]", "flwr") for one in needed]


def locked():
    """Return one version of each package for all systems and Pythons, with the hashes of its files."""
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
    ]
    command += ["--no-header", "--no-annotate", "-"]
    asked = "\n".join(requirements())
    done = subprocess.run(
        [sys.executable, "-m", *command], input=asked, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    LOCK.write_text(ABOVE + locked(), encoding="utf-8")
