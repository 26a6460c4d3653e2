"""The faults that ``faults.py`` plants fit the code and its tests; whether tests catch them takes too long for here."""

import subprocess
import sys

import pytest
from faults import FAULTS, ROOT, Fault, read_faults

PLANTED = read_faults(FAULTS)


def missing_tests(fault):
    """Return the tests named for a fault that are in no file."""
    found = []
    for test in fault.caught_by:
        name, _, function = test.partition("::")
        path = ROOT / name
        defined = f"def {function.partition('[')[0]}("
        if not path.is_file() or (function and defined not in path.read_text(encoding="utf-8")):
            found.append(test)
    return found


def test_the_text_of_every_fault_stands_exactly_once_in_its_file():
    unplanted = []
    for fault in PLANTED:
        path = ROOT / fault.file
        n_found = path.read_text(encoding="utf-8").count(fault.old) if path.is_file() else 0
        if n_found != 1:
            unplanted.append(f"{fault.id}: {n_found} times in {fault.file}")
    assert unplanted == []


def test_no_fault_uses_a_name_that_is_not_there(tmp_path):
    """Its tests would fail for this alone, whatever they look at."""
    pytest.importorskip("ruff")
    for fault in PLANTED:
        text = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
        (tmp_path / f"{fault.id}.py").write_text(text, encoding="utf-8")
    checked = [
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "F821,F823",
        "--output-format",
        "concise",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *checked, tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_named_for_a_fault_exists():
    assert {fault.id: missing for fault in PLANTED if (missing := missing_tests(fault))} == {}


@pytest.mark.parametrize(
    ("file", "test", "tested"),
    [
        ("flower_fedclust/x.py", "tests/test_x.py", "core"),
        ("flower_fedclust/x.py", "strategies/tests/test_x.py", "papers"),
        ("strategies/flower_fedclust_papers/x.py", "tests/test_x.py", "papers"),
    ],
)
def test_faults_in_the_second_distribution_are_tested_with_its_strategies(file, test, tested):
    assert Fault("x", "What is wrong.", file, "old", "new", (test,)).tested == tested


def test_a_fault_whose_text_has_changed_is_not_planted_in_silence():
    fault = Fault("gone", "What is wrong.", "some.py", "old", "new", ())
    for text in ("nothing", "old and old"):
        with pytest.raises(
            ValueError, match=r"^gone: the old text occurs \d times in some\.py, not once\.$"
        ):
            fault.planted(text)
