"""What goes out with a release agrees: versions, requirements, and the paper's references."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = (ROOT / "deploy" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
PAPER = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "line"), [("CITATION.cff", "version: {}"), ("CHANGELOG.md", "## {} ")])
def test_every_file_names_the_same_version(file, line):
    assert line.format(PROJECT["version"]) in (ROOT / file).read_text(encoding="utf-8")
    assert f"version: {PROJECT['version']}\n" in RECIPE


def test_the_conda_recipe_requires_what_the_wheel_requires():
    asked = RECIPE.split("  run:\n")[1].split("\n\n")[0]
    ours = {re.sub(r"\[.*\]", "", one) for one in PROJECT["dependencies"]} | {f"python{PROJECT['requires-python']}"}
    assert {line.strip("- ").replace(" ", "") for line in asked.splitlines()} - ours == {"ray-core"}


def test_the_paper_has_the_form_of_its_journal():
    text = PAPER.split("---\n")[2]
    assert 250 <= len(text.split()) <= 1000
    known = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(re.findall(r"@(\w+)", text))) == sorted(known)


def test_every_night_each_part_of_make_check_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (parts,) = re.findall(r"^CHECKS := (.*)$", makefile, re.MULTILINE)
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"part: \[(.*)\]", nightly)
    assert matrix.split(", ") == parts.split()
    assert {part for part in parts.split() if f"\ncheck-{part}:" not in makefile} == set()
