"""What the second distribution says of itself: its names, and what it takes from the core."""

import ast
import tomllib
from pathlib import Path

import pytest

from flower_fedclust import plugins
from flower_fedclust.models import Model
from flower_fedclust.registry import find

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flower_fedclust_papers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS = PROJECT["entry-points"]

#: What authors of strategies may import: docs/writing.md lists these, and says what each is for.
PUBLIC = {
    "engine",
    "engine.by_row",
    "engine.parts",
    "engine.rounds",
    "exact",
    "models",
    "numerics",
    "privacy.accounting",
    "privacy.noise",
    "privacy.releases",
    "privacy.report",
    "strategies",
}


def imported():
    """Yield the file and the name of everything that the package imports from the core."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "flower_fedclust"
            ):
                for name in node.names:
                    yield path.name, f"{node.module}.{name.name}".removeprefix("flower_fedclust.")


def is_public(name):
    """Say whether authors may import a name: it is in a public module, or in a folder of which all is public."""
    module = name.rpartition(".")[0]
    is_in_folder = module.split(".")[0] in {"exact", "models", "numerics", "strategies"}
    return (module in PUBLIC or is_in_folder) and not any(
        part.startswith("_") for part in name.split(".")
    )


def test_it_imports_only_what_authors_of_strategies_may_import():
    names = list(imported())
    assert len(names) > 50
    assert [(path, name) for path, name in names if not is_public(name)] == []


def test_the_page_for_authors_names_every_module_that_they_may_import():
    page = (ROOT.parent / "docs" / "writing.md").read_text(encoding="utf-8")
    assert [name for name in sorted(PUBLIC) if f"`flower_fedclust.{name}`" not in page] == []


@pytest.mark.parametrize("name", sorted(POINTS[plugins.STRATEGIES]))
def test_each_strategy_is_found_by_its_name(name):
    entry = find(name)
    assert (entry.name, f"{entry.strategy.__module__}:{entry.strategy.__name__}") == (
        name,
        POINTS[plugins.STRATEGIES][name],
    )


@pytest.mark.parametrize("name", sorted(POINTS[plugins.MODELS]))
def test_each_model_is_found_by_its_name(name):
    found = Model.named(name)
    assert (found.name, f"{found.__module__}:{found.__name__}") == (
        name,
        POINTS[plugins.MODELS][name],
    )


def test_the_core_knows_all_names_so_that_it_can_say_what_to_install():
    known = {name: class_name for class_name, names in plugins.OF_PAPERS.items() for name in names}
    points = POINTS[plugins.STRATEGIES] | POINTS[plugins.MODELS]
    assert known == {name: point.partition(":")[2] for name, point in points.items()}
    assert PROJECT["name"] == plugins.PAPERS
