"""Check that pip can install the lower bounds in pyproject.toml together: `make versions`. It asks the package index.

uv looks for the lowest versions that fit together. A bound below the version that it finds promises what nobody can
install.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def lowest_versions(pyproject):
    """Return the lowest version of each package that fits the other bounds, extras included."""
    command = ["uv", "pip", "compile", "--quiet", "--all-extras", "--python-version", "3.11"]
    command += ["--resolution", "lowest-direct", "--no-annotate", "--no-header", str(pyproject)]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return {
        name: Version(version)
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE)
    }


def too_low(pyproject):
    """Say which bounds are lower than what can be installed."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    found = lowest_versions(pyproject)
    requirements = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    for requirement in map(Requirement, dict.fromkeys(requirements)):
        bounds = [
            Version(one.version) for one in requirement.specifier if one.operator in (">=", "==")
        ]
        lowest = found[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        if not bounds or max(bounds) < lowest:
            yield f"{requirement}: the lowest version that fits the others is {lowest}; write >={lowest}."


if __name__ == "__main__":
    wrong = list(too_low(ROOT / "pyproject.toml"))
    print("\n".join(wrong) or "The lower bounds fit together.")
    sys.exit(bool(wrong))
