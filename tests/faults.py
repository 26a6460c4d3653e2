"""Plant faults in a copy of the code, one at a time, and see whether the tests notice.

``python tests/faults.py``            all faults; fails if the tests named for one of them do not catch it
``python tests/faults.py --only ID``  some of the faults

The tests of each fault run in a fork of this process, which has imported other packages for all: these imports would
take longer than most of the tests.

The faults are in ``faults.toml``: a file, a text that occurs in it exactly once, what replaces it, and the tests that
must fail then. Only a copy of the tree is changed. Where the file or a test is in the second
distribution, the tests take its strategies, as ``make papers`` does.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults.toml"

#: In seconds. A fault may make the code run for ever; that is noticed, too.
TIMEOUT = 120

#: What nearly all tests import, apart from this package.
PRELOADED = (
    *(
        "pytest",
        "hypothesis",
        "numba",
        "numpy",
        "scipy.stats",
        "scipy.optimize",
        "scipy.interpolate",
        "scipy.signal",
    ),
    *(
        "sklearn.cluster",
        "sklearn.datasets",
        "sklearn.manifold",
        "sklearn.mixture",
        "sklearn.model_selection",
    ),
    *(
        "pandas",
        "pyarrow.parquet",
        "pyarrow.compute",
        "flwr.server",
        "flwr.client",
        "flwr.clientapp",
        "flwr.serverapp",
    ),
    *(
        "dp_accounting",
        "joblib",
        "typer",
        "rich.console",
        "pydantic",
        "cryptography.fernet",
        "jinja2",
        "filelock",
    ),
)


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
            raise ValueError(
                f"{self.id}: the old text occurs {n_found} times in {self.file}, not once."
            )
        return text.replace(self.old, self.new)

    @property
    def tested(self) -> str:
        """Whose strategies the tests take: see ``tested.py``."""
        names = (self.file, *self.caught_by)
        return "papers" if any(name.startswith("strategies/") for name in names) else "core"


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file."""
    faults = [
        Fault(**{**fields, "caught_by": tuple(fields["caught_by"])}) for fields in _tables(path)
    ]
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
    for name in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split(
        "\0"
    ):
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


@dataclass
class Done:
    """How the process that was started for a fault has ended."""

    fault: Fault
    code: int
    said: str
    seconds: float


@dataclass
class Running:
    """A process that has a copy of the tree with a fault for itself."""

    fault: Fault
    copy: Path
    work: Callable[[Fault], int]
    context: ExitStack = field(default_factory=ExitStack)
    pid: int = 0
    start: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """Plant the fault, and fork."""
        self.context.enter_context(planted(self.fault, self.copy))
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run()

    def _run(self) -> None:
        """Do the work in the copy, as a process that has just begun; never return."""
        code = 1
        try:
            os.setsid()  # what it leaves behind can be ended with it
            said = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(self.copy)
            os.environ.update(environment_of(self.fault, self.copy))
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            sys.dont_write_bytecode = False
            elsewhere = [one for one in sys.path if not Path(one).is_relative_to(ROOT / "tests")]
            sys.path[:] = [str(self.copy), str(self.copy / "strategies"), *elsewhere]
            sys.argv = ["pytest"]
            sys.modules["__main__"] = ModuleType("__main__")
            code = self.work(self.fault)
            atexit._run_exitfuncs()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def end(self, status: int) -> Done:
        """Restore the copy."""
        self.context.close()
        said = self._output.read_text(encoding="utf-8", errors="replace")
        return Done(
            self.fault, os.waitstatus_to_exitcode(status), said, time.perf_counter() - self.start
        )

    @property
    def _output(self) -> Path:
        return self.copy.with_suffix(".out")


def environment_of(fault: Fault, copy: Path) -> dict[str, str]:
    """Return what the environment must say where the tests of a fault run."""
    return {
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "strategies")]),
        "FEDCLUST_TESTED": fault.tested,
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def plant_each(faults: Sequence[Fault], work: Callable[[Fault], int], jobs: int) -> Iterator[Done]:
    """Plant each fault in a copy of the tree, and call ``work`` there in a process of its own; yield how each ended."""
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    # A forked process would delete a TemporaryDirectory at its end.
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    running: dict[int, Running] = {}
    try:
        free = [folder / str(job) for job in range(jobs)]
        for copy in free:
            copy_tree(ROOT, copy)
        waiting = list(reversed(faults))
        while waiting or running:
            while waiting and free:
                one = Running(waiting.pop(), free.pop(), work)
                one.begin()
                running[one.pid] = one
            pid, status = os.wait()
            ended = running.pop(pid)
            free.append(ended.copy)
            yield ended.end(status)
    finally:
        for pid in running:
            os.killpg(pid, 9)
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(fault: Fault) -> int:
    """Run the tests that must catch a fault, up to the first that does."""
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", f"--timeout={TIMEOUT}"]
    # Plugins are imported before pytest begins.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *fault.caught_by]))


def judge(done: Done) -> tuple[bool, str]:
    """Say whether a test has caught the fault, and a line about it."""
    name, seconds = done.fault.id, f"{done.seconds:.0f} s"
    lines = done.said.splitlines()
    failed = [
        line.split()[1] for line in lines if line.startswith(("FAILED", "ERROR ")) and "::" in line
    ]
    if failed:
        return True, f"caught     {name} ({seconds}): {failed[0]}"
    if done.code != 0:  # pytest itself fails if a test does not exist, or cannot be imported
        return False, f"ERROR      {name}: {' | '.join(lines[-3:])}"
    return False, f"NOT CAUGHT {name} ({seconds}): {done.fault.what}"


def main() -> int:
    """Run the script; return 1 if a fault is not caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="faults to plant; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time")
    args = parser.parse_args()
    faults = read_faults(FAULTS)
    if unknown := sorted(set(args.only or ()) - {fault.id for fault in faults}):
        parser.error(f"there is no fault called {', '.join(unknown)}")
    wanted = [fault for fault in faults if args.only is None or fault.id in args.only]
    for fault in wanted:
        # Every fault can be planted.
        planted_text = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
        if fault.file.endswith(".py"):
            compile(planted_text, fault.file, "exec")
    n_caught = 0
    for done in plant_each(wanted, run_tests, args.jobs):
        is_caught, line = judge(done)
        n_caught += is_caught
        print(line, flush=True)
    print(f"{n_caught} of {len(wanted)} faults are caught.")
    return int(n_caught < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
