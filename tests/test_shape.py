"""docs/shape.md quotes the code, and every module with a strategy leads to it."""

import inspect
import re
import sys
from pathlib import Path

import pytest

from flower_fedclust.engine import messages
from flower_fedclust.engine.run import Run
from flower_fedclust.registry import CLASSES, strategies

ROOT = Path(__file__).parents[1]
SHAPE, _, RUN = (
    (ROOT / "docs" / "shape.md").read_text(encoding="utf-8").partition("## How does a run work?")
)


def test_every_quote_is_in_the_code():
    quotes = re.findall(r"^~~~python\n(.*?)^~~~$", SHAPE, re.MULTILINE | re.DOTALL)
    code = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in quoted_files())
    assert len(quotes) >= 4
    for quote in quotes:
        assert quote in code, quote


def test_the_page_shows_the_whole_run():
    steps, drive = re.findall(r"^~~~python\n(.*?)^~~~$", RUN, re.MULTILINE | re.DOTALL)
    for function, shown in ((Run.steps, steps), (messages.drive, drive)):
        assert shown == inspect.getsource(function)


@pytest.mark.parametrize("name", re.findall(r"`((?:\w+/)*\w+\.py)`", RUN))
def test_the_files_that_the_part_about_a_run_names_exist(name):
    folders = (ROOT, ROOT / "flower_fedclust", ROOT / "flower_fedclust" / "engine")
    assert any((folder / name).is_file() for folder in folders)


def quoted_files():
    return [
        f"flower_fedclust/{name}"
        for name in sorted(set(re.findall(r"`(strategies/\w+\.py)`", SHAPE)))
    ]


@pytest.mark.parametrize("name", re.findall(r"`(\w+\.py)`", SHAPE.split("## Where each part")[1]))
def test_the_files_of_the_engine_exist(name):
    assert (ROOT / "flower_fedclust" / "engine" / name).is_file()


def test_every_module_with_a_strategy_leads_to_the_page():
    ours = [entry.strategy for entry in strategies().values() if entry.strategy.__name__ in CLASSES]
    without = {
        one.__module__
        for one in ours
        if "docs/shape.md" not in (sys.modules[one.__module__].__doc__ or "")
    }
    assert without == set()
