"""Parameters that are declared once: fields, bounds, choices, and the documentation that is inherited."""

import inspect
from typing import Literal

import numpy as np
import pytest
from sklearn.base import clone

import flower_fedclust as fc
from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    PrivateStrategy,
    ProtocolStrategy,
    parameter,
)
from flower_fedclust.engine.parameters import Declared
from flower_fedclust.engine.parts import Part
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.accounting import calibrate


class Example(ProtocolStrategy):
    """An example.

    It does nothing.

    Parameters
    ----------
    n_steps, n_turns : int, default=3
        How many.
    mode : "fast" or "slow", default="fast"
        How.
    tol : float, optional
        When to stop.
    exact : bool, default=False
        Whether.

    Notes
    -----
    None.
    """

    n_steps: int = parameter(3, at_least=1)
    n_turns: int = parameter(3)
    mode: Literal["fast", "slow"] = parameter("fast")
    tol: float | None = parameter(None, above=0, at_most=1)
    exact: bool = parameter(False)

    n_protocol_rounds = 0

    def protocol(self):
        return KMeansModel([[0.0]])
        yield


class Narrower(Example):
    """A narrower example, without a section of its own."""

    n_steps: int = parameter(2, at_least=2)


class Private(PrivateStrategy):
    """A private example.

    Parameters
    ----------
    epsilon : float, default=20.0
        Another default.
    """

    epsilon: float = parameter(20.0, above=0)
    n_protocol_rounds = 0

    def parts(self):
        return {"sums": Part((), 0.75), "counts": Part((), 0.25, 2, "laplace")}

    def protocol(self):
        return KMeansModel([[0.0]])
        yield


class Clipped(ClippedStrategy):
    """A clipped example."""

    n_protocol_rounds = 0

    def protocol(self):
        return KMeansModel([[0.0]])
        yield


def test_parameters_are_fields_in_the_signature_by_name_and_n_clusters_by_position_too():
    signature = inspect.signature(Example)
    assert next(iter(signature.parameters)) == "n_clusters"
    assert {name for name, one in signature.parameters.items() if one.kind is one.KEYWORD_ONLY} == {
        "min_clients", "random_state", "federated_evaluation", "most_rows",
        "n_steps", "n_turns", "mode", "tol", "exact",
    }  # fmt: skip
    assert (
        set(Example(2).get_params()) == set(signature.parameters) == set(Example.parameter_names())
    )
    with pytest.raises(TypeError, match="positional"):
        Example(2, 3)
    with pytest.raises(TypeError, match="n_step"):
        Example(2, n_step=3)


def test_a_parameter_without_a_default_must_be_given():
    assert Example.required_parameters() == ("n_clusters",)
    with pytest.raises(TypeError, match="n_clusters"):
        Example()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("n_clusters", 1, "n_clusters is 1; it must be an integer, 2 or more."),
        ("n_steps", 0, "n_steps is 0; it must be an integer, 1 or more."),
        ("n_steps", 1.5, "n_steps is 1.5; it must be an integer, 1 or more."),
        ("n_steps", None, "n_steps is None; it must be an integer, 1 or more."),
        ("n_turns", -1, "n_turns is -1; it must be an integer, 0 or more."),
        ("mode", "middling", "mode is 'middling'; it must be one of: fast, slow."),
        ("tol", 0, "tol is 0; it must be a finite number above 0 and at most 1."),
        ("tol", float("nan"), "tol is nan; it must be a finite number above 0 and at most 1."),
        ("tol", "1", "tol is '1'; it must be a finite number above 0 and at most 1."),
        ("exact", 1, "exact is 1; it must be True or False."),
        ("min_clients", True, "min_clients is True; it must be an integer, 1 or more."),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(name, value, sentence):
    with pytest.raises(ValueError, match=r"\w") as caught:
        Example(**{"n_clusters": 2, name: value})
    assert str(caught.value) == sentence


def test_values_of_numpy_are_taken():
    made = Example(np.int64(2), tol=np.float32(0.1), exact=np.True_).set_params(
        n_steps=np.uint8(200)
    )
    values = (made.n_clusters, made.tol, made.exact, made.n_steps)
    assert values == (2, float(np.float32(0.1)), True, 200)
    assert [type(value) for value in values] == [int, float, bool, int]


def test_what_can_be_an_array_is_no_number_even_where_numbers_can_be_arrays():
    class WithRows(Example):
        """One with rows."""

        # As NumPy before 2.2 declares what can be an array.
        rows: np.ndarray | bool | int | float | complex | str | bytes | None = parameter(None)

    assert WithRows(2, rows=np.eye(2)).rows.shape == (2, 2)


def test_a_subclass_changes_default_and_bounds():
    assert Narrower(2).n_steps == 2
    with pytest.raises(ValueError, match="n_steps is 1; it must be an integer, 2 or more"):
        Narrower(2, n_steps=1)


def test_clone_and_set_params_work_and_attributes_of_a_run_are_no_parameters():
    made = Example(2, mode="slow").set_params(n_steps=7)
    assert (clone(made).mode, clone(made).n_steps) == ("slow", 7)
    assert "noise_seed" not in made.get_params()
    with pytest.raises(TypeError, match="noise_seed"):
        Example(2, noise_seed=1)
    assert repr(made) == "Example(mode='slow', n_clusters=2, n_steps=7)"


def test_documentation_of_the_bases_is_added_where_the_parameters_are():
    text = inspect.getdoc(Example)
    assert (
        text.index("exact : bool")
        < text.index("min_clients : int, optional")
        < text.index("Notes\n-----")
    )
    assert Example.parameter_docs["n_turns"] == "n_turns : int, default=3\n    How many."
    assert Example.parameter_docs["n_steps"].startswith("n_steps : int, default=3")
    assert "\n\n\n" not in text


def test_a_class_without_a_section_gets_one():
    text = inspect.getdoc(Narrower)
    assert text.startswith(
        "A narrower example, without a section of its own.\n\nParameters\n----------\n"
    )
    assert text.count("n_clusters : int") == text.count("mode : ") == 1


def test_what_a_class_says_itself_stands_instead_of_what_its_base_says():
    text = inspect.getdoc(Private)
    assert text.count("epsilon : float") == 1
    assert "Another default." in text
    assert "delta : float, default=1e-6" in text


def test_max_norm_is_needed_with_an_epsilon():
    Clipped(2).check_complete()
    with pytest.raises(
        ValueError,
        match=r"^max_norm is missing; noise for an epsilon needs a norm to which rows are",
    ):
        Clipped(2, epsilon=1.0).check_complete()


# The name that stands for parameters.


def test_of_the_names_that_fit_the_one_that_fixes_most_is_taken():
    class Named(Example):
        """Named."""

        entries = (Entry("plain", ""), Entry("slow", "", fixed={"mode": "slow"}))

    assert [Named(2).name, Named(2, mode="slow").name, Example(2).name] == [
        "plain",
        "slow",
        "Example",
    ]


# Budgets by name.


def test_a_budget_by_name_goes_to_that_share_and_the_rest_is_divided_as_before():
    plain = Private(2).noise_multipliers()
    assert list(plain) == ["sums", "counts"]
    more = Private(2, budget={"sums": 0.9}).noise_multipliers()
    assert more["sums"] < plain["sums"]
    assert more["counts"] > plain["counts"]
    assert Private(2, budget={"sums": 0.75}).noise_multipliers() == pytest.approx(plain)
    assert Private(2, budget={"sums": 0.75, "counts": 0.25}).noise_multipliers() == pytest.approx(
        plain
    )


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({"summs": 0.5}, "There is no part of the budget called 'summs': did you mean 'sums'?"),
        ({"sums": 1.0}, "budget adds up to 1; leave some for: counts."),
        ({"sums": 0.5, "counts": 0.4}, "budget adds up to 0.9; its parts must add up to 1."),
        ({"sums": 0.7, "counts": 0.7}, "budget adds up to 1.4; its parts must add up to 1."),
        (
            [("sums", 0.7)],
            "budget is [('sums', 0.7)]; it must be parts by name, such as {'votes': 0.3}.",
        ),
    ],
)
def test_a_budget_that_cannot_be_divided_says_why(budget, sentence):
    with pytest.raises(ValueError, match=r"\w") as caught:
        Private(2, budget=budget).noise_multipliers()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("part", [0, -0.1, 1.5, float("nan"), "0.5"])
def test_a_part_that_cannot_be_right_is_refused_at_once(part):
    with pytest.raises(ValueError, match="the budget of sums is"):
        Private(2, budget={"sums": part})


def test_a_base_that_would_hide_a_parameter_of_another_is_refused():
    class Root(Declared):
        """Root."""

        size: int = parameter(1, at_least=1)

    class Other(Root):
        """Declares the field anew."""

        size: int = parameter(5, at_least=1)

    class Plain(Root):
        """Only inherits it."""

    with pytest.raises(
        TypeError, match="Wrong: name Other, which declares size, as its first base"
    ):

        class Wrong(Plain, Other):
            """Would have the size of Root."""

    class Right(Other, Plain):
        """Has that of Other."""

    assert Right().size == 5


@pytest.mark.parametrize("delta", [0.0, 1e-30, 1e-13, 1.0])
def test_a_delta_below_what_can_be_computed_is_refused(delta):
    with pytest.raises(
        ValueError, match=r"delta is .*; it must be a finite number at least 1e-12 and below 1"
    ):
        Private(2, delta=delta).check_parameters()
    Private(2, delta=1e-12).check_parameters()
    assert not Private(2, epsilon=1.0, delta=1e-4).privacy_notes()
    (note,) = Private(2, epsilon=1.0, delta=0.01).privacy_notes()
    assert note.startswith(
        "delta is 0.01: with this probability everything about a row may come out."
    )


def test_a_part_of_delta_is_left_for_the_sampler():
    strategy = Private(2, epsilon=2.0, delta=1e-5)
    with_part = calibrate(strategy.shares(), 2.0, 1e-5 * (1 - 2.0**-10))
    assert strategy.noise_multipliers() == with_part
    assert all(
        strategy.noise_multipliers()[name] > whole
        for name, whole in calibrate(strategy.shares(), 2.0, 1e-5).items()
    )


@pytest.mark.parametrize(
    ("given", "meant"), [("eps", "epsilon"), ("k", "n_clusters"), ("n_cluster", "n_clusters")]
)
def test_a_parameter_that_there_is_not_is_told_the_nearest(given, meant):
    with pytest.raises(
        TypeError, match=f"no parameter of PrivateKMeans called '{given}': did you mean '{meant}'"
    ):
        fc.PrivateKMeans(**{given: 2})
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        fc.simulate("private-kmeans", [np.eye(3)], **{given: 2})


@pytest.mark.parametrize("name", ["steps", "protocol", "evaluate"])
def test_a_parameter_that_would_hide_a_method_is_refused_when_the_class_is_made(name):
    with pytest.raises(
        TypeError, match=f"Hiding has a parameter '{name}', which would hide the method"
    ):
        type(
            "Hiding",
            (fc.KFED,),
            {"__annotations__": {name: "int"}, name: 3, "__module__": __name__},
        )
