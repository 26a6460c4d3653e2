"""Run the code and the commands of the pages, and the example of each class; `make check` does.

The notebooks run when the site is built; tests/test_docs.py and tests/test_readme.py run commands that begin with
`fedclust`. `names` has what a reader would have, such as the rows of two sites.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from newcomer import Newcomer

import flower_fedclust as fc

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import site_pages  # noqa: E402

#: Pages whose code the tests run and check.
TESTED = ("README.md", "writing.md")

#: Beginnings of commands that no script or test runs literally: what runs them instead, or why nothing does.
ELSEWHERE = {
    "make run": "`make check` runs it",
    "make test": "`make check` runs it",
    "make lint": "runs before every change to the main branch",
    "make docs": "`make check` runs it",
    "make check": "this is part of it",
    "pip install": "needs the package index; the workflow `wheels` installs the wheel in an empty environment",
    "fedclust site --init site.toml": "the tutorial of a deployment, with two sites",
    "fedclust site --check site.toml": "tests/site/test_site_check.py",
    "fedclust site studies": "tests/site/test_site_studies.py",
    "fedclust site approve": "tests/site/test_site_studies.py",
    "fedclust site stop": "tests/site/test_site_studies.py",
    "fedclust site site.toml": "the tutorial of a deployment, with hosts and files of its own",
    "fedclust ledger": "the tutorial of a deployment; `export` in tests/site",
    "sh deploy/keys.sh": "the tutorial of a deployment",
    "flower-superlink": "the tutorial of a deployment",
    "fedclust compare --strategies spp-fgc,spp-fgc-sums,k-fed --datasets suite:": "tests/data, with a small suite",
    "fedclust run --data rows.parquet --client-column site --device cuda": "needs a card",
    "flower-supernode": "tests/apps",
    "flwr list": "tests/apps",
    "flwr supernode register": "the tutorial of a deployment",
    "flwr run . SUPERLINK": "the tutorial of a deployment, and tests/apps, with other files",
    "flwr run . ours": "`deploy/one_machine.py` runs what this file says",
    "python benchmarks/": "take minutes or hours; run by hand when their pages change",
}

SCHEMA = """
[columns.age]
kind = "number"
bounds = [0, 110]

[columns.dose]
kind = "number"
bounds = [0, 5]
"""


def names() -> dict[str, object]:
    """Return the names that a reader of a page would have, and write the reader's files into this folder."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=900)
    table = pd.DataFrame(
        {"age": rng.normal(20 + 30 * kinds, 2), "dose": rng.normal(1 + kinds, 0.1)}
    )
    table["site"] = rng.choice(["north", "south", "east"], size=900)
    table.assign(kind=kinds).to_csv("rows.csv", index=False)
    Path("columns.toml").write_text(SCHEMA, encoding="utf-8")
    tables = {site: part.drop(columns="site") for site, part in table.groupby("site")}
    means = rng.uniform(0, 9, size=(3, 4))
    classes = [rng.integers(3, size=n) for n in (60, 90, 70, 80)]
    sites = [np.abs(means[labels] + rng.normal(size=(len(labels), 4))) for labels in classes]
    visits = [part.assign(patient=np.arange(len(part)) // 3) for part in tables.values()]
    return {
        "__name__": "page",
        "visits_at_north": visits[0],
        "visits_at_south": visits[1],
        "tables": tables,
        "north": tables["north"],
        "south": tables["south"],
        "a_new_table": tables["east"],
        "schools": tables,
        "schema": SCHEMA,
        "np": np,
        "fc": fc,
        "clients": sites,
        "labels": classes,
        "rows_of_site_1": sites[0],
        "rows_of_site_2": sites[1],
        "classes_1": classes[0],
        "classes_2": classes[1],
        "new_rows": sites[2],
        "public_rows": sites[3],
        "rows_of_this_site": sites[0],
        "names_of_the_columns": ["a", "b", "c", "d"],
    }


def examples() -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each example."""
    for path in site_pages.described_classes():
        code = site_pages.example_of(path)
        if code is None and "Examples\n" not in site_pages.docstring_of(path):
            code = "raise NotImplementedError('no example; write one in docs/class_examples.py')"
        if code is not None:
            yield path, code
    for page in sorted([ROOT / "README.md", *DOCS.rglob("*.md")]):
        name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name
        text = page.read_text(encoding="utf-8")
        if (
            name in TESTED
            or name.startswith(("api/", "_build/", "reproduced/"))
            or "file_format: mystnb" in text
        ):
            continue
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if blocks:
            yield name, "\n".join(blocks)


def commands() -> Iterator[tuple[str, str]]:
    """Yield page and text of each command on its own line, except `fedclust` commands that a test runs.

    A backslash at the end continues a line; comments and cells of notebooks are left out.
    """
    for page in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]):
        if {"api", "_build", "jupyter_execute", "reproduced"} & set(page.relative_to(ROOT).parts):
            continue
        text = page.read_text(encoding="utf-8")
        for fence, language, block in re.findall(
            r"^(```|~~~)([^\n]*)\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE
        ):
            for line in () if language else block.replace("\\\n", " ").splitlines():
                command = re.sub(r"\s+", " ", line.partition("  #")[0]).strip()
                tested = fence == "```" and command.startswith("fedclust ")
                if not tested and re.match(
                    r"(make|pip|fedclust|flwr|flower-\w+|sh|python) ?", command
                ):
                    yield page.name, command


def runs() -> list[str]:
    """Return the commands of the pages that this script runs."""
    begins = ("flwr run first-app", "flwr run . --stream", "python deploy/one_machine.py")
    return sorted({command for _, command in commands() if command.startswith(begins)})


def run(command: str, reader: Newcomer) -> None:
    """Run a command as a reader would; raise a CalledProcessError if it fails."""
    folder = reader.home
    if "first-app" in command:
        reader.says(["fedclust", "new-app", "first-app"], folder)
    else:
        for part in ("apps", "strategies", "deploy", "pyproject.toml", "README.md", "LICENSE"):
            copied = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copied(ROOT / part, folder / part)
    said = reader.says(command.replace("/tmp/try", "try"), folder)
    # `flwr run` exits with 0 even if the run failed.
    if not reader.results and not list(folder.glob("try/result/*/result.json")):
        raise RuntimeError(f"{command} saved no result:\n{said}")


def main(wanted: list[str]) -> int:
    """Run the examples whose name contains one of the words, or all; return how many failed."""
    n_failed = 0
    for command in runs():
        if wanted and not any(word in command for word in wanted):
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            reader = Newcomer(Path(folder))
            try:
                run(command, reader)
            except (subprocess.SubprocessError, RuntimeError) as error:
                n_failed += 1
                print(f"FAILED {command}\n{error}\n{getattr(error, 'stdout', '')}", flush=True)
            else:
                print(f"{command}: {time.perf_counter() - start:.1f} s", flush=True)
            finally:
                reader.stop()
    for name, code in examples():
        if wanted and not any(word in name for word in wanted):
            continue
        start, printed, here = time.perf_counter(), io.StringIO(), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, name, "exec"), names())
            except Exception:
                n_failed += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            else:
                print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
            finally:
                os.chdir(here)
    print(f"{n_failed} failed")
    return n_failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
