"""The names of the strategies: ours, those of other packages, and ``module:Class``."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flower_fedclust as fc
from flower_fedclust import plugins, registry
from flower_fedclust.engine import ProtocolClient, ProtocolStrategy
from flower_fedclust.models import Model
from flower_fedclust.registry import (
    CLASSES,
    accepted_parameters,
    client_types,
    find,
    make_strategy,
    strategies,
)

ROOT = Path(__file__).parents[1]
PUBLIC = np.random.default_rng(0).normal(size=(30, 3))

#: A strategy as somebody else would write it.
MODULE = '''
"""Somebody's strategies."""

from flower_fedclust.strategies.baselines.pooled import PooledKMeans
from flower_fedclust.engine import Entry


class Theirs(PooledKMeans):
    """Somebody's own k-means.

    It does what ours does.
    """

    entries = (Entry("{name}", "somebody's k-means"),)


class Nameless(PooledKMeans):
    """One without a name."""


class NoStrategy:
    """Something else."""
'''


@pytest.fixture(autouse=True)
def afresh():
    """Look strategies up anew, before and after."""

    def forget():
        registry._installed.cache_clear()
        plugins.points.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with strategies and an entry point."""

    def installed(package, *, name="theirs", target="Theirs", text=MODULE):
        (tmp_path / f"{package}.py").write_text(text.replace("{name}", name))
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[{plugins.STRATEGIES}]\n{name} = {package}{target and ':'}{target}\n"
        )
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield installed
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("name", list(strategies()))
def test_a_strategy_calls_itself_as_the_registry_does(name):
    accepted = accepted_parameters(name)
    parameters = {"server_data": PUBLIC} if "server_data" in accepted else {}
    made = make_strategy(name, n_clusters=3, **parameters | find(name).example)
    assert made.name == name
    entry = find(name)
    assert type(made) is entry.strategy
    assert issubclass(entry.strategy.client_type, ProtocolClient)
    assert entry.strategy.__doc__
    assert entry.summary
    assert "\n" not in entry.summary


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("k-fed", {"n_cluster": 3}, "'n_cluster'"),
        ("feddp-kmeans", {}, "n_clusters and server_data"),
    ],
)
def test_parameters_that_cannot_be_given_or_are_missing_are_named(name, parameters, named):
    with pytest.raises(ValueError, match=named):
        make_strategy(name, **parameters)


def test_a_parameter_that_a_name_stands_for_cannot_be_given(install):
    install("somebody_g", text=MODULE.replace('k-means")', 'k-means", fixed={"min_clients": 3})'))
    assert make_strategy("theirs", n_clusters=3).min_clients == 3
    with pytest.raises(ValueError, match="'min_clients'"):
        make_strategy("theirs", n_clusters=3, min_clients=2)


def test_client_halves_are_listed_once_each():
    names = ["fed-tsne", "fed-umap", "k-fed"]
    assert client_types(names) == [
        find(names[0]).strategy.client_type,
        find("k-fed").strategy.client_type,
    ]


def test_an_entry_point_names_a_class_and_looking_it_up_imports_nothing_else(install):
    install("somebody_a")
    install("somebody_f", name="others", text="raise ImportError")
    assert find("theirs").strategy.__module__ == "somebody_a"
    assert "somebody_f" not in sys.modules
    assert {"theirs", "others"} <= set(registry.names())
    assert make_strategy("theirs", n_clusters=3).name == "theirs"
    with pytest.raises(ValueError, match="'others' is somebody_f:Theirs, which fails: ImportError"):
        find("others")


def test_ours_stay_where_another_package_has_a_name_of_ours(install):
    install("somebody_b", name="k-fed")
    with pytest.warns(UserWarning, match="'k-fed' of somebody_b"):
        found = strategies()
    assert found["k-fed"].strategy.__module__ == "flower_fedclust.strategies.baselines.kfed"


def test_a_package_that_does_not_import_takes_nothing_of_ours_away(install):
    install("somebody_c", text="import there_is_no_such_module")
    with pytest.warns(UserWarning, match="somebody_c"):
        assert "feddp-kmeans" in strategies()


def test_an_entry_point_that_names_something_else_is_left_out_with_a_warning(install):
    install("somebody_e", target="NoStrategy")
    with pytest.warns(
        UserWarning,
        match="somebody_e:NoStrategy, which is not a strategy with an entry of that name",
    ):
        assert "feddp-kmeans" in strategies()


def test_an_entry_point_without_a_class_or_that_exits_takes_no_class_away(install):
    install("somebody_h", name="whole", target="")
    install("somebody_i", name="leaves", target="Leaves", text="raise SystemExit(0)")
    assert fc.FedSC.__name__ in dir(fc)
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchClass'"):
        fc.NoSuchClass  # noqa: B018
    with pytest.warns(UserWarning, match="is left out") as left_out:
        assert "feddp-kmeans" in strategies()
    for sentence in (
        "'leaves' is somebody_i:Leaves, which fails: SystemExit",
        "'whole' is somebody_h, which is not",
    ):
        assert any(sentence in str(one.message) for one in left_out)


def test_any_class_can_be_named_by_its_module(install):
    install("somebody_d")
    entry = find("somebody_d:Nameless")
    assert (entry.name, entry.summary) == ("somebody_d:Nameless", "One without a name.")
    assert make_strategy("somebody_d:Theirs", n_clusters=3).name == "theirs"
    assert client_types(["somebody_d:Theirs", "somebody_d:Nameless"]) == [
        entry.strategy.client_type
    ]
    assert issubclass(entry.strategy, ProtocolStrategy)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("there_is_none:Class", "No module named 'there_is_none'"),
        ("flower_fedclust.strategies.baselines.kfed:KFET", "has no attribute 'KFET'"),
        ("flower_fedclust.names:look_up", "look_up is no subclass of ProtocolStrategy."),
        ("k-fet", "did you mean 'k-fed'?"),
    ],
)
def test_what_is_no_strategy_is_refused_with_the_reason(name, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        find(name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise RuntimeError('no license')", "RuntimeError: no license"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("x = = 1", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(install, text, why):
    install("somebody_k", text=text)
    with pytest.raises(ValueError, match=f"'somebody_k:Theirs' cannot be imported: {why}"):
        find("somebody_k:Theirs")
    with pytest.raises(ValueError, match="There is no strategy ':Theirs'"):
        find(":Theirs")


# The public names.


def test_every_public_name_can_be_imported():
    assert set(dir(fc)) == {*fc.__all__, *CLASSES}
    for name in dir(fc):
        assert getattr(fc, name).__doc__
    for entry in strategies().values():
        assert getattr(fc, entry.strategy.__name__) is entry.strategy
    with pytest.raises(AttributeError, match=r"has no attribute 'Nothing'$"):
        _ = fc.Nothing


def test_a_newcomer_meets_few_names():
    assert len(dir(fc)) <= 45


@pytest.mark.parametrize(
    ("name", "home"),
    [("Sum", "flower_fedclust.authoring"), ("KMeansModel", "flower_fedclust.authoring")],
)
def test_a_name_that_is_not_at_the_top_is_found_where_the_error_says(name, home):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': import it from {home}"):
        getattr(fc, name)
    assert hasattr(importlib.import_module(home), name)


def test_the_package_imports_nothing_heavy_before_it_is_needed():
    code = "import sys, flower_fedclust; print(sorted({'flwr', 'sklearn', 'torch', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_who_asks_for_one_strategy_imports_that_one_and_nothing_heavy():
    """A site has a new process for every message: what all of them import is waited for each time."""
    heavy = ["sklearn", "pandas", "dp_accounting", "scipy.sparse", "joblib", "sqlalchemy"]
    code = (
        "import os, sys; os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import flower_fedclust.site.app, flower_fedclust.registry as registry\n"
        "from flower_fedclust.numerics.threads import one_thread\n"
        "(found,) = registry.client_types(['private-kmeans'])\n"
        "with one_thread(): print(found.__name__)\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
        "print({m.split('.')[2] for m in sys.modules if '.strategies.' in m} - {'common'})\n"
        "print(sys.modules['flower_fedclust'].KFED.__name__, any('fedsc' in name for name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:4] == [
        "PrivateKMeansClient",
        "[]",
        "{'private_kmeans'}",
        "KFED False",
    ]


def test_the_table_has_every_class_with_names_and_all_its_names():
    found = {}
    for module in pkgutil.walk_packages(
        [str(ROOT / "flower_fedclust" / "strategies")], "flower_fedclust.strategies."
    ):
        for value in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(value, type)
                and value.__module__ == module.name
                and vars(value).get("entries")
            ):
                names = (entry.name for entry in value.entries)
                found[value.__name__] = (module.name.removeprefix("flower_fedclust."), *names)
    assert found == registry.CLASSES


def test_a_strategy_that_is_asked_for_alone_is_the_one_among_all():
    assert {name: find(name) for name in strategies()} == strategies()


def test_a_name_of_the_second_distribution_says_what_to_install():
    with pytest.raises(
        ValueError,
        match="'pe-means' is in the package flower-fedclust-papers, which is not installed",
    ):
        find("pe-means")
    with pytest.raises(ValueError, match="'encoded' is in the package flower-fedclust-papers"):
        Model.named("encoded")
    with pytest.raises(AttributeError, match="'PEMeans' is in the package flower-fedclust-papers"):
        _ = fc.PEMeans
