"""Plant faults in a copy of the code, one at a time, and see whether the tests notice.

``python tests/faults.py``            all faults; fails if the tests named for one of them do not catch it
``python tests/faults.py --only ID``  some of the faults

The faults are in ``faults.toml``: a file, a text that occurs in it exactly once, what replaces it, and the tests that
must fail then. Only a copy of the tree is changed. Where the file or a test is in the second
distribution, the tests take its strategies, as ``make papers`` does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults.toml"

#: In seconds. A fault may make the code run for ever; that is noticed, too.
TIMEOUT = 120


@dataclass(frozen=True)
class Fault:
    """One change that some test must notice."""

    id: str
    what: str  #: What is wrong then, in one sentence.
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def planted(self, text: str) -> str:
        """Return the text of the file with the fault."""
        if (n_found := text.count(self.old)) != 1:
            raise ValueError(f"{self.id}: the old text occurs {n_found} times in {self.file}, not once.")
        return text.replace(self.old, self.new)

    @property
    def tested(self) -> str:
        """Whose strategies the tests take: see ``tested.py``."""
        names = (self.file, *self.caught_by)
        return "papers" if any(name.startswith("strategies/") for name in names) else "core"


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file."""
    faults = [Fault(**{**fields, "caught_by": tuple(fields["caught_by"])}) for fields in _tables(path)]
    ids = [fault.id for fault in faults]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise ValueError(f"{path}: there are two faults called {', '.join(twice)}.")
    return faults


def _tables(path: Path) -> list[dict[str, str]]:
    tables: list[dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return tables


def copy_tree(root: Path, target: Path) -> None:
    """Copy every file that git tracks or does not ignore."""
    asked = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """Change a copy of the tree for as long as the context lasts."""
    path = copy / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(fault.planted(text), encoding="utf-8")
    _forget_compiled(path)
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        _forget_compiled(path)


def _forget_compiled(path: Path) -> None:
    """Delete byte code: Python takes a file of the same size and second for the same file."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def catch(fault: Fault, copy: Path) -> tuple[bool, str]:
    """Run the tests that must catch a fault, up to the first that does; say whether one did, and a line about it."""
    start = time.perf_counter()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "strategies")]),
        "FEDCLUST_TESTED": fault.tested,
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", f"--timeout={TIMEOUT}"]
    command = [sys.executable, "-m", "pytest", *options, *fault.caught_by]
    with planted(fault, copy):
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    failed = [
        line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR ")) and "::" in line
    ]
    if failed:
        return True, f"caught     {fault.id} ({seconds:.0f} s): {failed[0]}"
    if done.returncode != 0:  # pytest itself fails if a test does not exist, or cannot be imported
        return False, f"ERROR      {fault.id}: {' | '.join((done.stdout + done.stderr).splitlines()[-3:])}"
    return False, f"NOT CAUGHT {fault.id} ({seconds:.0f} s): {fault.what}"


def main() -> int:
    """Run the script; return 1 if a fault is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID", help="faults to plant; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time")
    args = parser.parse_args()
    faults = read_faults(FAULTS)
    if unknown := sorted(set(args.only or ()) - {fault.id for fault in faults}):
        parser.error(f"there is no fault called {', '.join(unknown)}")
    wanted = [fault for fault in faults if args.only is None or fault.id in args.only]
    for fault in wanted:
        fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))  # every fault can be planted
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copies: Queue[Path] = Queue()
        for job in range(args.jobs):
            copy_tree(ROOT, Path(folder, str(job)))
            copies.put(Path(folder, str(job)))

        def judge(fault: Fault) -> bool:
            copy = copies.get()
            try:
                is_caught, line = catch(fault, copy)
            finally:
                copies.put(copy)
            print(line, flush=True)
            return is_caught

        with ThreadPoolExecutor(args.jobs) as pool:
            n_caught = sum(pool.map(judge, wanted))
    print(f"{n_caught} of {len(wanted)} faults are caught.")
    return int(n_caught < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
