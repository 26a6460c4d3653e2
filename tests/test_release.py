"""What goes out with a release agrees: versions, requirements, and the paper's references."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = (ROOT / "deploy" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
PAPER = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "line"), [("CITATION.cff", "version: {}"), ("CHANGELOG.md", "## {} ")]
)
def test_every_file_names_the_same_version(file, line):
    assert line.format(PROJECT["version"]) in (ROOT / file).read_text(encoding="utf-8")
    assert f"version: {PROJECT['version']}\n" in RECIPE


def test_the_conda_recipe_requires_what_the_wheel_requires():
    asked = RECIPE.split("  run:\n")[1].split("\n\n")[0]
    ours = {re.sub(r"\[.*\]", "", one) for one in PROJECT["dependencies"]} | {
        f"python{PROJECT['requires-python']}"
    }
    assert {line.strip("- ").replace(" ", "") for line in asked.splitlines()} - ours == {"ray-core"}


def locked(text):
    """Return the versions of each package in a file of requirements, with their hashes."""
    found = {}
    for name, version, rest in re.findall(
        r"^([\w.-]+)==(\S+)(.*(?:\n +--hash.*)*)", text, re.MULTILINE
    ):
        found.setdefault(name, []).append(
            (Version(version), re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))
        )
    return found


def test_a_site_installs_what_the_wheel_requires_with_hashes_and_without_ray():
    text = (ROOT / "deploy" / "site-requirements.txt").read_text(encoding="utf-8")
    found = locked(text)
    assert all(hashes for versions in found.values() for _, hashes in versions)
    assert not {"ray", "torch", "datasets", "flwr-datasets"} & set(found)
    assert "://" not in text
    for one in map(Requirement, PROJECT["dependencies"]):
        assert all(version in one.specifier for version, _ in found[one.name]), one
    assert len(found.keys() - {"colorama"}) <= 72  # on Windows alone


def test_the_paper_has_the_form_of_its_journal():
    text = PAPER.split("---\n")[2]
    assert 250 <= len(text.split()) <= 1000
    known = re.findall(
        r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(set(re.findall(r"@(\w+)", text))) == sorted(known)


def test_every_night_each_part_of_make_check_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    parts = " ".join(re.findall(r"^(?:ONE_BY_ONE|SIDE_BY_SIDE) := (.*)$", makefile, re.MULTILINE))
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"part: \[(.*)\]", nightly)
    assert sorted(matrix.split(", ")) == sorted(parts.split())
    assert {part for part in parts.split() if f"\ncheck-{part}:" not in makefile} == set()
