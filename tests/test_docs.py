"""The pages of docs/ are true, and the site is built from them without a warning."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import zlib
from collections import Counter
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import site_examples
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

import flower_fedclust as fc
import flower_fedclust.data
import flower_fedclust.engine
from flower_fedclust.cli.commands import app
from flower_fedclust.numerics import map_quality
from flower_fedclust.registry import strategies
from flower_fedclust.site.cli import StartsByDefault

DOCS = Path(__file__).parents[1] / "docs"
MADE = {"_build", "api", "jupyter_execute", "reproduced"}  # not kept
PAGES = sorted(
    page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if not MADE & set(page.parts)
)
MODULES = (flower_fedclust.data, flower_fedclust.engine, map_quality)
# What a page loads by itself; only a reader follows links.
LOADS = (
    r'<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|srcset|data)="([^"]*)"'
)
LINKED = r'<link\b(?![^>]*rel="(?:canonical|index|search|next|prev)")[^>]*?\bhref="([^"]*)"'


def snippets(page: str, language: str) -> list[str]:
    found = re.findall(
        r"^```([^\n]*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return [code for written_in, code in found if written_in == language]


def public_names(module) -> set[str]:
    if hasattr(module, "__path__"):
        names = [
            name
            for name, value in vars(module).items()
            if name[0] != "_" and not inspect.ismodule(value)
        ]
        return {f"{module.__name__}.{name}" for name in names}
    return {
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
    }


def write_rows(folder):
    """Write the files that a reader of the pages would have."""
    rng = np.random.default_rng(0)
    lines = ["site,kind,age,dose"]
    for index in range(600):
        site = ("north", "south", "east")[index % 7 % 3]
        age, dose = rng.normal([20 + 30 * (index % 3), 1 + index % 3], [2, 0.1])
        lines.append(f"{site},{'abc'[index % 3]},{age:.2f},{dose:.3f}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (comparison,) = snippets("comparing.md", "toml")
    (folder / "comparison.toml").write_text(comparison)


@pytest.fixture
def folder_with_rows(tmp_path, monkeypatch):
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    needed = ("sphinx", "furo", "myst_nb", "sphinx_design", "sphinx_copybutton")
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(
            f"the site's generator is not installed ({', '.join(missing)}); pip install '.[docs]'."
        )
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-d",
        f"{out}/.trees",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "NOTEBOOKS": "off"}
    built = subprocess.run(
        [*command, DOCS, out / "html"], capture_output=True, text=True, env=environment
    )
    assert built.returncode == 0, built.stderr
    return out / "html"


def names_of_the_code_of(page, *, without=None):
    names = {}
    for code in snippets(page, "python"):
        if without is None or without not in code:
            exec(code, names)
    return names


@pytest.mark.long
def test_the_example_of_keeping_a_model_runs(folder_with_rows):
    names = names_of_the_code_of("using.md")
    assert repr(names["kept"]) == repr(names["result"])
    assert (
        names["model"].predict(names["new"]).tolist()
        == names["kept"].model.predict(names["new"]).tolist()
    )
    assert len(names["estimator"].strategy.get_params()) > 1
    assert len(names["pipeline"][-1].labels_) == len(names["table"])


def test_the_example_of_outcomes_runs():
    names = names_of_the_code_of("outcomes.md")
    medians = [one.high for one in names["result"].survival.tables.medians]
    assert min(medians) < 40 < max(medians)


def test_the_example_with_own_rows_runs(folder_with_rows):
    pytest.importorskip("duckdb")
    names = names_of_the_code_of("tables.md", without="columns.toml")  # which `make check` runs
    assert names["sites"].names == ["east", "north", "south"] == list(names["tables"])
    assert np.array_equal(names["of_north"].rows, names["sites"].clients[1])
    assert np.array_equal(names["of_north"].rows, names["tables"]["north"])
    assert (
        max(np.linalg.norm(rows, axis=1).max() for rows in names["scaled"])
        <= names["strategy"].max_norm
    )
    assert names["result"].privacy.covers_everything


@pytest.fixture
def page_of_strategies(tmp_path, monkeypatch):
    """The code of the pages on writing strategies, as a module of its own."""
    cells = snippets("tutorials/own-strategy.md", "{code-cell} ipython3")
    code = "\n".join([*snippets("writing.md", "python"), *cells[:2]])
    (tmp_path / "my_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_module")
    sys.modules.pop("my_module")


def test_the_strategies_of_the_pages_find_the_mean_and_cover_the_run(page_of_strategies):
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, size=(3000, 3)) + np.array([0.2, 0.0, -0.1])
    for kind, atol in ((page_of_strategies.PrivateMean, 0.02), (page_of_strategies.LocalMean, 0.3)):
        result = fc.simulate(kind(2, epsilon=5.0, max_norm=1.0), [rows[:1000], rows[1000:]], seed=0)
        np.testing.assert_allclose(
            result.model.cluster_centers_, rows.mean(axis=0, keepdims=True), atol=atol
        )
        assert result.privacy.covers_everything


@pytest.mark.long
def test_every_command_of_the_pages_runs(tmp_path, monkeypatch, page_of_strategies):
    n_commands = 0
    for page in PAGES:
        commands = [
            line
            for block in snippets(page, "")
            for line in block.splitlines()
            if line.startswith("fedclust ")
        ]
        folder = tmp_path / page.replace("/", "-")
        if commands:
            folder.mkdir()
            monkeypatch.chdir(folder)
            write_rows(folder)
        for line in commands:
            words = shlex.split(line)[1:]
            result = CliRunner().invoke(
                app, [*words, *(["--jobs", "1"] if words[0] == "compare" else [])]
            )
            assert result.exit_code == 0, f"{page}: {line}: {result.output} {result.exception}"
            n_commands += 1
    assert n_commands >= 15
    assert (tmp_path / "comparing.md" / "comparison" / "report.html").exists()


def test_every_command_and_option_that_a_page_names_exists():
    """Also checks commands in the text, which cannot be run literally."""
    known = typer.main.get_command(app)
    for page in [*PAGES, "../README.md"]:
        for words in re.findall(
            r"`fedclust ([^`]+)`", (DOCS / page).read_text().replace("\n", " ")
        ):
            command, rest = known, words.split()
            while rest and isinstance(command, TyperGroup):
                if isinstance(command, StartsByDefault) and rest[0] not in command.commands:
                    rest = ["start", *rest]
                assert rest[0] in command.commands, f"{page}: fedclust {words}"
                command, rest = command.commands[rest[0]], rest[1:]
            options = {name for parameter in command.params for name in parameter.opts}
            passed_on = command.context_settings.get("ignore_unknown_options", False)
            named = {word for word in rest if word.startswith("--")}
            assert passed_on or named <= options, f"{page}: fedclust {words}"


def test_every_other_command_of_the_pages_is_run_or_says_why_not():
    found = {line for _, line in site_examples.commands()}
    for line in found:
        places = [begins for begins in site_examples.ELSEWHERE if line.startswith(begins)]
        assert line in site_examples.runs() or places, (
            f"nothing runs '{line}'; see tests/site_examples.py"
        )
    for begins in site_examples.ELSEWHERE:
        assert any(line.startswith(begins) for line in found), begins


def test_the_chooser_answers_every_question_with_a_strategy_that_does_what_was_asked(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    pages = importlib.import_module("site_pages")
    names = [name for name, _, _ in pages.QUESTIONS]
    n_given_up = Counter()
    for answers in product(*(options for _, _, options in pages.QUESTIONS)):
        wishes = dict(zip(names, answers, strict=True))
        name, given_up = pages.choose(wishes)
        assert pages.fits(strategies()[name], wishes) == (not given_up), wishes
        n_given_up[len(given_up)] += 1
    assert set(n_given_up) == {0, 1, 2}
    assert n_given_up[0] > n_given_up[1] > n_given_up[2]
    private = {"finds": "round", "sees": "sums", "unit": "client", "public": "no", "rounds": "many"}
    assert pages.choose(private) == ("private-kmeans", ())
    assert pages.choose(private | {"public": "yes", "rounds": "few"}) == ("feddp-kmeans", ())


@pytest.mark.slow
@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_whole(site):
    """One test, so that the site is built once."""
    every_strategy_is_in_the_table_once_and_in_the_reference(site)
    the_site_is_built_without_a_warning_and_has_every_page(site)
    every_public_name_is_in_the_reference(site)
    no_page_loads_anything_from_another_host(site)
    every_picture_of_the_pages_is_there(site)


def every_strategy_is_in_the_table_once_and_in_the_reference(site):
    table = (site / "choosing.html").read_text()
    reference = (site / "reference" / "strategies.html").read_text()
    for name, entry in strategies().items():
        assert table.count(f'<span class="pre">{name}</span></code></span></a></p></td>') == 1, name
        page = (site / "api" / f"{entry.strategy.__name__}.html").read_text()
        assert f"api/{entry.strategy.__name__}.html" in reference, name
        assert f'id="{entry.strategy.__module__}.{entry.strategy.__name__}"' in page, name
        assert 'id="example"' in page, name


def the_site_is_built_without_a_warning_and_has_every_page(site):
    assert {page.removesuffix(".md") + ".html" for page in PAGES} <= {
        page.relative_to(site).as_posix() for page in site.rglob("*.html")
    }


def every_public_name_is_in_the_reference(site):
    inventory = zlib.decompress(
        (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    ).decode()
    described = {line.split(" ")[0] for line in inventory.splitlines()}
    wanted = {f"flower_fedclust.{name}" for name in fc.__all__} | set().union(
        *map(public_names, MODULES)
    )
    # What is public twice is described once.
    elsewhere = {f"flower_fedclust.engine.{name}" for name in (*fc.__all__, *dir(fc.authoring))}
    assert wanted - described - elsewhere == set()


def no_page_loads_anything_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        for address in re.findall(LOADS, text) + re.findall(LINKED, text):
            assert not re.match(r"(?:\w+:)?//", address), f"{page.name} loads {address}"
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", text), page.name
    for style in site.rglob("*.css"):
        found = re.search(r"@import|url\(['\"]?(?:https?:)?//", style.read_text())
        assert not found, style.name


def every_picture_of_the_pages_is_there(site):
    for page in site.rglob("*.html"):
        for address in re.findall(r'<img\b[^>]*?\bsrc="([^"]*)"', page.read_text()):
            assert (page.parent / address).is_file(), f"{page.name}: {address}"
