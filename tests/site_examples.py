"""Run the example on the page of each class, and the code of each page; `make check` does.

The notebooks among the pages run when the site is built. A block of a page that needs names which a reader would have
(rows of two sites, say) finds them in NAMES.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import flower_fedclust as fc

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import site_pages  # noqa: E402

#: Pages whose code the tests run, with what it finds.
TESTED = ("README.md", "rows.md", "writing.md")


SCHEMA = """
[columns.age]
kind = "number"
bounds = [0, 110]

[columns.dose]
kind = "number"
bounds = [0, 5]
"""


def names() -> dict[str, object]:
    """Return what a reader of a page would have, and write the files that a reader would have into this folder."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=900)
    table = pd.DataFrame({"age": rng.normal(20 + 30 * kinds, 2), "dose": rng.normal(1 + kinds, 0.1)})
    table["site"] = rng.choice(["north", "south", "east"], size=900)
    table.assign(kind=kinds).to_csv("rows.csv", index=False)
    Path("columns.toml").write_text(SCHEMA, encoding="utf-8")
    tables = {site: part.drop(columns="site") for site, part in table.groupby("site")}
    means = rng.uniform(0, 9, size=(3, 4))
    classes = [rng.integers(3, size=n) for n in (60, 90, 70, 80)]
    sites = [np.abs(means[labels] + rng.normal(size=(len(labels), 4))) for labels in classes]
    return {
        "__name__": "page",
        "tables": tables,
        "tables_of_schools": tables,
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
    """Yield what is run, with its code."""
    for path in site_pages.described_classes():
        code = site_pages.example_of(path)
        if code is None and "Examples\n" not in site_pages.docstring_of(path):
            code = "raise NotImplementedError('no example; write one in docs/class_examples.py')"
        if code is not None:
            yield path, code
    for page in sorted([ROOT / "README.md", *DOCS.rglob("*.md")]):
        name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name
        text = page.read_text(encoding="utf-8")
        if name in TESTED or name.startswith(("api/", "_build/")) or "file_format: mystnb" in text:
            continue
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if blocks:
            yield name, "\n".join(blocks)


def main(wanted: list[str]) -> int:
    """Run those whose name holds one of the words, or all; return how many failed."""
    n_failed = 0
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
