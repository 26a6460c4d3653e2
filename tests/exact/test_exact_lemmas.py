"""Every bound is tied to a lemma of docs/exact.md, and every lemma to the code that needs it."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import flower_fedclust
from flower_fedclust.exact.terms import Term, count

PACKAGE = Path(flower_fedclust.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "exact.md").read_text()

#: Functions that hand on the bound of a term, and the one whose bound is infinite.
WITHOUT_A_LEMMA = {"added_up", "as_stack", "of_one_client", "reshaped", "unbounded"}


def lemmas_of(function):
    """Return the lemmas that a function names in its decorator, as the source has it."""
    found = [
        ast.literal_eval(argument)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "proven"
        for argument in decorator.args
    ]
    return set(found)


def functions():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(PACKAGE).as_posix(), node


def makes_a_term(function):
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(getattr(called, "id", "") in ("enforced", "_counted") for called in calls)


def test_every_function_that_makes_a_term_names_its_lemma():
    makers = {node.name: lemmas_of(node) for _, node in functions() if makes_a_term(node)}
    assert len(makers) > 20
    assert {name for name, lemmas in makers.items() if not lemmas} == WITHOUT_A_LEMMA


def test_every_lemma_that_the_code_names_is_on_the_page_and_the_other_way_round():
    proved = re.findall(r"^\*\*Lemma (\w+): [^*]+\*\*", PAGE, re.MULTILINE)
    assert len(proved) == len(set(proved)) > 15
    assert {lemma for _, node in functions() for lemma in lemmas_of(node)} == set(proved)


@pytest.mark.parametrize("path", re.findall(r"in\n?\s?`(flower_fedclust\.[\w.]+)`", PAGE))
def test_every_proof_that_the_page_sends_to_the_code_is_there(path):
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    assert len(inspect.getdoc(function)) > 300
    assert function.lemmas


def test_a_function_tells_its_lemmas():
    assert count.lemmas == ("1",)
    with pytest.raises(TypeError, match="which clip"):
        Term()
