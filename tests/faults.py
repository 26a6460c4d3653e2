"""Plant faults in a copy of the code, one at a time, and see whether the tests notice.

``python tests/faults.py``            for each fault, the tests that are known to catch it; fails if none of them does
``python tests/faults.py --search``   for each fault, the quick tests that reach it; writes down those that catch it

The faults are in ``faults.toml``: a file, a text that stands in it exactly once, and what takes its place. A copy of
the tree is changed, never the tree itself.

This file is a plugin of pytest, too (``-p faults``): it puts the tests in order, and writes down which functions each
test reaches and which tests fail.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from queue import Queue
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults.toml"
PACKAGE = "flower_fedclust"

#: So many tests or fewer are collected by name, which takes no longer than their whole files.
FEW = 3
#: In seconds: a fault may make the code run for ever, which is noticed, too.
TIMEOUT = 120
#: Environment variables by which the script tells the plugin what to do.
ORDER, REACHED, FAILED = "FAULTS_ORDER", "FAULTS_REACHED", "FAULTS_FAILED"
OPTIONS = ("-p", "faults", "-p", "no:cacheprovider", "--tb=no")

#: Processes that have loaded what takes longest to load, and nothing of the package.
FORKS = multiprocessing.get_context("forkserver")
LOADED = ["pytest", "hypothesis", "scipy.stats", "sklearn.cluster", "flwr.server", "dp_accounting.pld", "pandas"]


@dataclass(frozen=True)
class Fault:
    """One change that some test should notice.

    Parameters
    ----------
    id : str
    what : str
        What is wrong then, in one sentence.
    file : str
        Relative to the root.
    old : str
        A text that stands exactly once in the file.
    new : str
        What takes its place.
    caught_by : tuple of str
        Tests that fail then; none where it is not known to be caught.
    """

    id: str
    what: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...] = ()

    def planted(self, text: str) -> str:
        """Return the text of the file with the fault.

        Raises
        ------
        ValueError
            If the old text does not stand exactly once in the file.
        """
        if (n_found := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.id}: the old text stands {n_found} times in {self.file}, and must stand there once."
            )
        return text.replace(self.old, self.new)

    def function(self, text: str) -> str:
        """Return the qualified name of the innermost function that holds the old text; "" if none does."""
        line = text[: text.index(self.old)].count("\n") + 1
        holding = [(node.lineno, name) for node, name in _functions(ast.parse(text)) if _holds(node, line)]
        return max(holding)[1] if holding else ""


@dataclass(frozen=True)
class Verdict:
    """What came out for one fault.

    Parameters
    ----------
    fault : Fault
    caught_by : tuple of str
        The tests that failed.
    n_run : int
        How many tests there were to run at most.
    seconds : float
    error : str
        What kept the tests from running.
    """

    fault: Fault
    caught_by: tuple[str, ...]
    n_run: int
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"ERROR      {self.fault.id}: {self.error}"
        found = "caught    " if self.caught_by else "NOT CAUGHT"
        return f"{found} {self.fault.id} ({self.seconds:.0f} s): {', '.join(self.caught_by) or self.fault.what}"


@dataclass(frozen=True)
class Reached:
    """What is known of the tests from a run without a fault.

    Parameters
    ----------
    functions : mapping of str to list of str
        By test: "file:function" of each function of the package that it reaches.
    seconds : mapping of str to float
        By test.
    failed : set of str
        Tests that fail without a fault; they say nothing.
    """

    functions: Mapping[str, list[str]]
    seconds: Mapping[str, float]
    failed: frozenset[str] = field(default_factory=frozenset)

    def tests(self, fault: Fault, function: str) -> list[str]:
        """Return the tests that reach a fault: those of its module first, then those of its folder, fast ones first."""
        place = f"{fault.file}:{function}"
        path = Path(fault.file)

        def rank(test: str) -> tuple[bool, bool, float]:
            file = test.split("::")[0]
            return f"_{path.stem}" not in file, path.parent.name not in file, self.seconds.get(test, 0.0)

        def reaches(functions: list[str]) -> bool:
            return place in functions if function else any(name.startswith(place) for name in functions)

        found = [test for test, names in self.functions.items() if test not in self.failed and reaches(names)]
        return sorted(found, key=rank)

    def seconds_of(self, tests: Sequence[str]) -> float:
        """Return how long tests take together."""
        return sum(self.seconds.get(test, 0.0) for test in tests)

    def first(self, tests: Sequence[str], most_seconds: float) -> list[str]:
        """Return as many of the first tests as take so long together."""
        taken = accumulate(self.seconds.get(test, 0.0) for test in tests)
        return [test for test, seconds in zip(tests, taken, strict=True) if seconds <= most_seconds]

    def others(self, tests: Sequence[str]) -> list[str]:
        """Return the other tests of the same files: what a shared fixture computes is put down to one of them alone."""
        without = self.failed.union(tests)
        files = {test.split("::")[0] for test in tests}
        found = [test for test in self.functions if test not in without and test.split("::")[0] in files]
        return sorted(found, key=lambda test: self.seconds.get(test, 0.0))


# The list of faults.


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file.

    Raises
    ------
    ValueError
        If two have the same id.
    """
    faults = [
        Fault(**{**fields, "caught_by": tuple(fields.get("caught_by", ()))})
        for fields in tomllib.loads(path.read_text())["fault"]
    ]
    ids = [fault.id for fault in faults]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise ValueError(f"{path}: there are two faults called {', '.join(twice)}.")
    return faults


def write_faults(path: Path, faults: Sequence[Fault]) -> None:
    """Write the faults, below what the file begins with."""
    beginning = path.read_text().split("[[fault]]")[0].rstrip()
    path.write_text("\n".join([beginning, *map(_as_toml, faults)]).lstrip())


def _as_toml(fault: Fault) -> str:
    tests = "".join(f"    {json.dumps(test, ensure_ascii=False)},\n" for test in fault.caught_by)
    return (
        "\n[[fault]]\n"
        f"id = {json.dumps(fault.id)}\n"
        f"what = {json.dumps(fault.what, ensure_ascii=False)}\n"
        f"file = {json.dumps(fault.file)}\n"
        f"old = {_text(fault.old)}\n"
        f"new = {_text(fault.new)}\n"
        f"caught_by = [{chr(10) if tests else ''}{tests}]\n"
    )


def _text(text: str) -> str:
    if "\n" not in text and "'" not in text:
        return f"'{text}'"
    return f"'''\n{text}'''"


# Runs of pytest in a copy of the tree.


def copy_tree(root: Path, target: Path) -> None:
    """Copy what git knows of a tree, and what it would not ignore."""
    asked = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """Change the copy of a tree for as long as the context lasts."""
    path = copy / fault.file
    text = path.read_text()
    path.write_text(fault.planted(text))
    _forget_compiled(path)
    try:
        yield
    finally:
        path.write_text(text)
        _forget_compiled(path)


def _forget_compiled(path: Path) -> None:
    """Python takes a file of the same size and second for the same file."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(copy: Path, tests: Sequence[str], *, most: int) -> tuple[list[str], str]:
    """Run tests in a copy of the tree.

    Parameters
    ----------
    copy : Path
    tests : sequence of str
        In the order in which they are to run.
    most : int
        After so many failures the rest is left out.

    Returns
    -------
    failed : list of str
    error : str
        What kept the tests from running, if anything did.
    """
    with tempfile.TemporaryDirectory() as folder:
        order, failed = Path(folder, "order.json"), Path(folder, "failed.json")
        order.write_text(json.dumps(list(tests)))
        options = [f"--maxfail={most}", f"--timeout={TIMEOUT}"]
        # A file is collected whole, and a few tests faster by name.
        named = list(tests) if len(tests) <= FEW else list(dict.fromkeys(test.split("::")[0] for test in tests))
        settings, printed = {ORDER: str(order), FAILED: str(failed)}, Path(folder, "printed")
        process = FORKS.Process(target=_run_pytest, args=(copy, [*options, *named], settings, printed))
        process.start()
        process.join()
        found = json.loads(failed.read_text()) if failed.exists() else []
        lines = [line for line in printed.read_text().splitlines() if line.strip()] if printed.exists() else []
    if found or process.exitcode == 0:
        return found, ""
    return [], f"pytest ended with {process.exitcode}: {' | '.join(lines[-3:])}"


def _run_pytest(copy: Path, arguments: Sequence[str], settings: Mapping[str, str], printed: Path) -> None:
    """Run pytest in this process, which ends with it; what it prints goes to a file."""
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ.update(_environment(copy) | settings)
    sys.path[:0] = [str(copy), str(copy / "tests")]
    code = pytest.main([*OPTIONS, *arguments])
    sys.stdout.flush()
    os._exit(code)


def _environment(copy: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests")]),
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def find_reached(copy: Path, n_jobs: int, *, options: Sequence[str] = ()) -> tuple[Reached, str]:
    """Run the quick tests without a fault, and return what they reach, and what pytest printed."""
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder, "failed")
        processes = ["--numprocesses", str(n_jobs), "--dist", "loadfile"] if n_jobs > 1 else []
        arguments = ["-m", "not slow", *processes, *options]
        environment = {**os.environ, **_environment(copy), REACHED: folder, FAILED: str(failed)}
        command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        if not failed.exists():
            raise RuntimeError(f"the tests did not run without a fault: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        functions: dict[str, list[str]] = {}
        seconds: dict[str, float] = {}
        for part in Path(folder).glob("*.json"):
            found = json.loads(part.read_text())
            functions |= found["functions"]
            seconds |= found["seconds"]
        return Reached(functions, seconds, frozenset(json.loads(failed.read_text()))), done.stdout


def function_of(fault: Fault) -> str:
    """Return the function of the tree in which a fault is planted."""
    return fault.function((ROOT / fault.file).read_text())


def check(fault: Fault, copy: Path) -> Verdict:
    """Run the tests that are known to catch a fault, up to the first that does."""
    start = time.perf_counter()
    with planted(fault, copy):
        if not fault.caught_by:
            return Verdict(fault, (), 0, 0.0)
        failed, error = run_tests(copy, fault.caught_by, most=1)
    return Verdict(fault, tuple(failed), len(fault.caught_by), time.perf_counter() - start, error)


def search(fault: Fault, copy: Path, reached: Reached, *, most_seconds: float, enough: int) -> Verdict:
    """Run the tests that reach a fault, and the others of their files if none of these catches it.

    Parameters
    ----------
    fault : Fault
    copy : Path
    reached : Reached
    most_seconds : float
        Tests that take longer together, without a fault, are left out: the least likely ones.
    enough : int
        A fault that so many tests catch is searched for no further.
    """
    start = time.perf_counter()
    tests = reached.tests(fault, function_of(fault))
    n_run, found, error = 0, list[str](), ""
    for part in (reached.first(tests, most_seconds), reached.first(reached.others(tests), most_seconds)):
        if part and not found and not error:
            with planted(fault, copy):
                failed, error = run_tests(copy, part, most=enough)
            n_run += len(part)
            found = confirmed(fault, copy, failed)
    return Verdict(fault, tuple(found), n_run, time.perf_counter() - start, error)


def confirmed(fault: Fault, copy: Path, tests: Sequence[str]) -> list[str]:
    """Return those tests that fail with the fault and without it do not, whatever ran before them."""
    if not tests:
        return []
    with planted(fault, copy):
        with_fault, _ = run_tests(copy, tests, most=len(tests))
    without, _ = run_tests(copy, tests, most=len(tests))
    return [test for test in tests if test in with_fault and test not in without]


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table in Markdown."""
    lines = ["| fault | what | caught | by | seconds |", "|---|---|---|---|---:|"]
    for verdict in verdicts:
        fault = verdict.fault
        caught = "error" if verdict.error else "yes" if verdict.caught_by else "**no**"
        by = verdict.error or "<br>".join(f"`{test}`" for test in verdict.caught_by).replace("|", "\\|")
        lines.append(f"| `{fault.id}` | {fault.what} | {caught} | {by} | {verdict.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the script; return 1 if a fault is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--search", action="store_true", help="find the tests that catch each fault, and write them down"
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="faults to plant; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time")
    parser.add_argument("--reached", type=Path, help="where to keep what the tests reach, for another search")
    parser.add_argument("--most-seconds", type=float, default=math.inf, help="how long to search for one fault, about")
    parser.add_argument("--enough", type=int, default=3, help="how many tests of those that catch a fault to find")
    parser.add_argument("--table", type=Path, help="where to write the verdicts, as Markdown")
    args = parser.parse_args()

    faults = read_faults(FAULTS)
    if unknown := sorted(set(args.only or ()) - {fault.id for fault in faults}):
        parser.error(f"there is no fault called {', '.join(unknown)}")
    wanted = [fault for fault in faults if args.only is None or fault.id in args.only]
    FORKS.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copies: Queue[Path] = Queue()
        for job in range(args.jobs):
            copy_tree(ROOT, Path(folder, str(job)))
            copies.put(Path(folder, str(job)))
        for fault in wanted:
            fault.planted((ROOT / fault.file).read_text())  # all of them can be planted, before one is
        reached = _reached(args.reached, Path(folder, "0"), args.jobs) if args.search else None

        def judge(fault: Fault) -> Verdict:
            copy = copies.get()
            try:
                verdict = (
                    check(fault, copy)
                    if reached is None
                    else search(fault, copy, reached, most_seconds=args.most_seconds, enough=args.enough)
                )
            finally:
                copies.put(copy)
            print(verdict, flush=True)
            return verdict

        if reached is not None:  # what takes longest last
            wanted.sort(key=lambda fault: reached.seconds_of(reached.tests(fault, function_of(fault))))
        verdicts = []
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in as_completed(pool.submit(judge, fault) for fault in wanted):
                verdicts.append(done.result())
                if args.search and not verdicts[-1].error:
                    found = {verdict.fault.id: verdict.caught_by for verdict in verdicts if not verdict.error}
                    known = [replace(fault, caught_by=found.get(fault.id, fault.caught_by)) for fault in faults]
                    write_faults(FAULTS, known)
                if args.table is not None:
                    args.table.write_text(table(verdicts))
    n_caught = sum(bool(verdict.caught_by) for verdict in verdicts)
    print(f"{n_caught} of {len(verdicts)} faults are caught.")
    return int(n_caught < len(verdicts))


def _reached(kept: Path | None, copy: Path, n_jobs: int) -> Reached:
    if kept is not None and kept.exists():
        fields = json.loads(kept.read_text())
        return Reached(fields["functions"], fields["seconds"], frozenset(fields["failed"]))
    reached, _ = find_reached(copy, n_jobs)
    if kept is not None:
        fields = {"functions": reached.functions, "seconds": reached.seconds, "failed": sorted(reached.failed)}
        kept.write_text(json.dumps(fields))
    return reached


# The plugin.


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Give every function of a module with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield node, name
            yield from _functions(node, f"{name}.")
        else:
            yield from _functions(node, within)


def _holds(node: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    """Tell whether a line is in the body of a function: its defaults belong to what is around it."""
    return node.body[0].lineno <= line <= (node.end_lineno or node.lineno)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module each function of which says that it was reached."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("what was compiled without saying so is of no use")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = ast.parse(data)
        file = Path(path).relative_to(Path.cwd()).as_posix()
        for node, name in _functions(tree):
            says = ast.parse(f"__fault_reached__({f'{file}:{name}'!r})").body[0]
            node.body.insert(0 if ast.get_docstring(node) is None else 1, says)
            ast.copy_location(says, node.body[0])
            ast.fix_missing_locations(says)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the package for :class:`_Loader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Recorder:
    """Writes down which functions each test reaches, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json"
        self._now: set[str] = set()
        self._functions: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}
        builtins.__fault_reached__ = self._now.add  # type: ignore[attr-defined]
        sys.meta_path.insert(0, _Finder())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now.clear()
        start = time.perf_counter()
        result = yield
        self._seconds[item.nodeid] = time.perf_counter() - start
        self._functions[item.nodeid] = sorted(self._now)
        return result

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({"functions": self._functions, "seconds": self._seconds}))


class _Failures:
    """Writes down which tests fail."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(list(self._failed)))


def pytest_configure(config: pytest.Config) -> None:
    """Set up what the script has asked for."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(config.rootpath):
        raise pytest.UsageError(f"{PACKAGE} is found at {spec and spec.origin}, not below {config.rootpath}.")
    if FAILED in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_Failures(Path(os.environ[FAILED])))
    if REACHED in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ[REACHED])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that the script has asked for, in its order."""
    if ORDER not in os.environ:
        return
    order = {test: index for index, test in enumerate(json.loads(Path(os.environ[ORDER]).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


if __name__ == "__main__":
    sys.exit(main())
