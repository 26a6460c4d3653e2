"""The page of a comparison: its numbers are those of the runs, and it is whole, readable and safe."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.data import load_dataset, partition
from flower_fedclust.format import FORMAT
from flower_fedclust.harness.charts import apart, linear_axis, logarithmic_axis, pareto_front
from flower_fedclust.harness.comparison import comparison_from, settings_from_toml
from flower_fedclust.harness.page import settings_as_toml, write_report
from flower_fedclust.harness.pictures import map_of_trial
from flower_fedclust.harness.results import MEASURES, NOTHING, Spread, number_text, read_comparison
from flower_fedclust.harness.verdict import verdict
from flower_fedclust.results.files import read_labels
from flower_fedclust.results.pictures import group_colors

EVIL = "</script><img src=x onerror=alert(1)>\"'&@@TITLE@@"
BACKS = ("page", "panel", "best")


class Page(HTMLParser):
    """The elements of a page: each a tag, attributes, the tags around it, and the text inside."""

    def __init__(self, folder):
        super().__init__()
        self.source, self.elements, self.open = (
            write_report(folder).read_text(encoding="utf-8"),
            [],
            [],
        )
        self.feed(self.source)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        element = {
            "tag": tag,
            "around": [one["tag"] for one in self.open],
            "text": "",
            **dict(attributes),
        }
        self.elements.append(element)
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            one
            for one in self.elements
            if one["tag"] == tag and all(one.get(name) == value for name, value in wanted.items())
        ]


def save_run(folder, row, result=None, classes=None):
    """Write the folder of a run, with centers unless its result says otherwise."""
    key = f"{row['strategy']}__{row['data']}__iid__epsilon-{row['epsilon']}__seed-{row['seed']}"
    path = (
        folder
        / "runs"
        / "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in key)
    )
    row = {"key": path.name, "partition": "iid", "status": "done", "reason": None, **row}
    if result is not None:
        result.save(path)
        known = result.privacy.to_dict()
        row |= {
            **result.metrics,
            "epsilon_spent": known["epsilon"],
            "covers_everything": known["covers_everything"],
            "privacy_unit": known["unit"],
            "noise": known["noise"],
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": result.seconds,
            "rounds": result.summary()["rounds"],
        }
    path.mkdir(parents=True, exist_ok=True)
    if result is None:
        (path / "centers.csv").write_text("0\n")
    if classes is not None:
        lines = [
            f"{name},{one}"
            for name, part in zip(result.names, classes, strict=True)
            for one in part
        ]
        (path / "classes.csv").write_text("\n".join(["client,class", *lines]) + "\n")
    (path / "run.json").write_text(json.dumps(row))
    return path


def settings(folder, **more):
    known = {
        "strategies": ["pooled-kmeans", "k-fed"],
        "data": ["iris"],
        "partitions": ["iid"],
        "seeds": [0, 1],
    }
    content = {"format": FORMAT, **known, "started": "2026-01-02T03:04:05+00:00", **more}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Strategies of every kind on iris: pooled, plain, private, with a history, with a map, and one that failed."""
    pytest.importorskip("openTSNE")
    folder = settings(tmp_path_factory.mktemp("real"), epsilons=[0.5, 1.0])
    for seed in (0, 1):
        rows = partition(load_dataset("iris"), "iid", n_clients=4, random_state=seed)
        public = rows.clients[0][:30]
        strategies = [
            (fc.PooledKMeans(3), None),
            (fc.KFED(3), None),
            (fc.FedSC(3, n_rounds=4), None),
        ]
        for epsilon in (0.5, 1.0):
            strategies.append((fc.FedDPKMeans(3, server_data=public, epsilon=epsilon), epsilon))
        if seed == 0:
            strategies.append((fc.FedTSNESums(3), None))
        for strategy, epsilon in strategies:
            names = [f"site {EVIL[:9]}{index}" for index in range(4)]
            result = fc.simulate(strategy, rows.clients, labels=rows.labels, names=names, seed=seed)
            row = {
                "strategy": strategy.name,
                "data": "iris",
                "epsilon": epsilon,
                "seed": seed,
                "n_rows": 150,
            }
            save_run(folder, row, result, rows.labels)
    failed = {"strategy": "fedsc-sums", "data": "iris", "epsilon": 1.0, "seed": 0}
    save_run(folder, {**failed, "status": "failed", "reason": f"It did not end: {EVIL}"})
    return folder


@pytest.fixture(scope="module")
def page(real):
    return Page(real)


def fake(folder, **columns):
    """Write runs with made-up numbers: three strategies, two budgets, three seeds."""
    numbers = np.random.default_rng(0)
    rows = []
    for strategy in ("pooled-kmeans", "a", "b"):
        for epsilon in (None,) if strategy == "pooled-kmeans" else (0.5, 2.0):
            for seed in range(3):
                made = {
                    "accuracy": numbers.random(),
                    "cost_per_row": numbers.gamma(1),
                    "bytes_up": 7,
                    "bytes_down": 1,
                }
                row = {
                    "strategy": strategy,
                    "data": "d",
                    "epsilon": epsilon,
                    "seed": seed,
                    **made,
                    **columns,
                }
                rows.append({**row, "covers_everything": epsilon is not None})
                save_run(folder, rows[-1])
    return pd.DataFrame(rows)


def test_the_page_is_whole_by_itself_and_nothing_in_it_moves(page):
    policy = page.all("meta", **{"http_equiv": "Content-Security-Policy"})[0]["content"]
    assert "default-src 'none'" in policy
    assert not page.all("link") + page.all("img")
    assert not [
        one for one in page.elements if one.get("src") or not one.get("href", "#").startswith("#")
    ]
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert not re.search(
        r"\b(animation|transition|scroll-behavior|requestAnimationFrame)\b", page.source
    )


def test_a_screen_reader_finds_names_scopes_headings_and_a_way_past_the_links(page):
    ids = [one["id"] for one in page.elements if "id" in one]
    assert len(set(ids)) == len(ids)
    referred = [name for one in page.elements for name in one.get("aria-labelledby", "").split()]
    assert set(referred) | {one["href"][1:] for one in page.all("a")} <= set(ids)
    captions = {one["id"] for one in page.all("caption")}
    assert (
        len(page.all("table"))
        == len(captions)
        == len({one["text"] for one in page.all("caption")})
        > 4
    )
    assert {
        one["aria-labelledby"] for one in page.all("div", class_="box", tabindex="0", role="group")
    } == captions
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    levels = [int(one["tag"][1]) for one in page.elements if re.fullmatch("h[1-6]", one["tag"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.all("html")[0]["lang"] == "en"
    first = next(one for one in page.elements if one["tag"] == "a")
    assert (first["class"], first["href"]) == ("skip", f"#{page.all('main')[0]['id']}")
    assert all(one["type"] == "button" for one in page.all("button"))


def test_every_picture_says_what_it_is_and_has_its_numbers_beside_it(page):
    names = [one["aria-label"] for one in page.all("svg", class_="chart", role="img")]
    assert len(set(names)) == len(names) >= 2
    assert set(names) <= {one["text"] for one in page.all("caption")}
    numbers = [
        one["text"]
        for one in page.all("summary")
        if one["text"].startswith("The numbers of this chart")
    ]
    assert numbers == [f"The numbers of this chart ({name})" for name in names]
    (canvas,) = page.all("canvas")
    assert (canvas["role"], canvas["tabindex"]) == ("application", "0")
    assert canvas["aria-label"].startswith("iris, iid: fed-tsne-sums.")
    assert "Arrow keys" in canvas["aria-label"]
    assert len(page.all("span", class_="unseen", role="status")) == 1
    assert all("hidden" in one for one in page.all("div", class_="tip"))


def luminance(color):
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


#: From linear RGB to the cube of LMS, and from LMS to OKLab (Ottosson 2020).
LMS = np.array(
    [
        [0.41222147, 0.53633254, 0.05144599],
        [0.21190350, 0.68069955, 0.10739696],
        [0.08830246, 0.28171884, 0.62997870],
    ]
)
LAB = np.array(
    [
        [0.21045426, 0.79361778, -0.00407205],
        [1.97799850, -2.42859221, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
)


def with_lightness(color, limit, choose):
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    lab = LAB @ np.cbrt(LMS @ linear)
    lab[0] = choose(lab[0], limit)
    linear = np.clip(np.linalg.solve(LMS, np.linalg.solve(LAB, lab) ** 3), 0, 1)
    channels = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * one):02x}" for one in channels)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_and_every_mark_stands_out_from_what_lies_behind(page, scheme):
    styles = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", part))
        for part in re.findall(r":root {([^}]*)}", page.source)
    ]
    assert styles[0].keys() == styles[1].keys()
    assert "opacity:" not in "".join(re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL))
    colors, name = styles[scheme], ("light", "dark")[scheme]
    for text in ("text", "soft", "open", "accent"):
        assert min(contrast(colors[text], colors[behind]) for behind in BACKS) >= 4.5
    for mark in ("strong-line", "accent", *(f"c{index}" for index in range(10))):
        assert min(contrast(colors[mark], colors[behind]) for behind in ("panel", "page")) >= 3
    # The script limits the lightness (in OKLab) of colors on a map.
    limit = float(
        re.search(
            {"light": r"min\(l, ([.\d]+)\)", "dark": r"max\(l, ([.\d]+)\)"}[name], page.source
        )[1]
    )
    shown = {
        with_lightness(color, limit, max if name == "dark" else min)
        for n in (10, 40, 100)
        for color in group_colors(n)
    }
    assert min(contrast(color, colors["panel"]) for color in shown) >= 3
    assert (
        len(
            {
                with_lightness(color, limit, max if name == "dark" else min)
                for color in group_colors(10)
            }
        )
        == 10
    )


def test_a_row_has_its_strategy_and_its_epsilon_and_headings_that_sort(page):
    rows = [one for one in page.all("th", scope="row") if "data-value" in one]
    named = [
        (one["data-value"], other["text"]) for one, other in zip(rows[::2], rows[1::2], strict=True)
    ]
    assert ("feddp-kmeans", "0.5") in named
    assert len(set(named)) == len(named) == 6  # and the one that failed is not among them
    assert len([one for one in page.all("button") if "thead" in one["around"]]) > 8
    assert [one["aria-sort"] for one in page.all("th") if "aria-sort" in one] == ["descending"]
    assert [one["text"] for one in page.all("em")] == ["pooled reference"]
    assert next(one for one in page.elements if one["tag"] == "tbody")["class"] == "pooled"


def test_values_that_are_not_there_are_said_in_words_and_not_printed(page, tmp_path):
    dashes = [one for one in page.elements if one["text"] == NOTHING]
    assert dashes
    assert all(one["aria-hidden"] == "true" for one in dashes)
    strange = {
        "nmi": math.nan,
        "ari": math.inf,
        "seconds": None,
        "epsilon_spent": "",
        "rounds": "nan",
    }
    fake(tmp_path, **strange)
    for one in (page, Page(tmp_path)):
        texts = [
            element["text"]
            for element in one.elements
            if element["tag"] in ("td", "th", "p", "text", "li")
        ]
        words = {word.strip("()*,.±").lower() for text in texts for word in text.split()}
        assert not words & {"nan", "inf", "undefined", "null"}
        assert not [key for element in one.elements for key in element.values() if key == "nan"]


def test_means_and_deviations_are_those_of_pandas_and_the_best_is_marked_by_more_than_a_color(
    tmp_path,
):
    frame, page = fake(tmp_path), None
    page = Page(tmp_path)
    grouped = frame.groupby(["strategy", "epsilon"], dropna=False)["accuracy"].agg(["mean", "std"])
    cells = page.all("td", data_column="accuracy")
    found = sorted((float(one["data-value"]), float(one["data-deviation"])) for one in cells)
    np.testing.assert_allclose(found, sorted(map(tuple, grouped.to_numpy())), rtol=1e-12)
    shown = {f"{mean:.3f}± {deviation:.3f}" for mean, deviation in grouped.to_numpy()}
    assert {one["text"].rpartition(") ")[2] for one in cells} == shown
    means = frame.groupby(["strategy", "epsilon"])[["accuracy", "cost_per_row"]].mean()
    for column, best in (
        ("accuracy", means["accuracy"].max()),
        ("cost_per_row", means["cost_per_row"].min()),
    ):
        (starred,) = [one for one in page.all("td", data_column=column) if "★" in one["text"]]
        assert float(starred["data-value"]) == pytest.approx(best)
        assert "(best)" in starred["text"]


def test_a_cost_in_another_space_is_never_the_best(real, page):
    (scenario,) = read_comparison(real).scenarios
    comparable = {
        one.strategy: one.is_comparable("cost_per_row") for one in scenario.contenders if one.trials
    }
    elsewhere = {"fedsc", "fed-tsne-sums"}
    assert comparable == {
        name: name not in elsewhere
        for name in ("pooled-kmeans", "k-fed", "feddp-kmeans", *elsewhere)
    }
    daggers = [one for one in page.all("td", data_column="cost_per_row") if "†" in one["text"]]
    assert len(daggers) == 2
    assert not [one for one in daggers if "★" in one["text"]]


def test_the_front_holds_what_nothing_beats_and_names_of_series_do_not_overlap():
    assert pareto_front([], []) == []
    assert pareto_front([1, 1, 2, 3, 3], [5, 4, 5, 6, 6]) == [True, False, False, True, True]
    assert apart([10, 12, 300], 100) == [10, 27, 100]
    assert apart([99, 99, 99], 100) == [66, 83, 100]


def test_text_from_outside_is_shown_and_never_run(tmp_path):
    row = {"strategy": EVIL, "data": EVIL, "epsilon": 1.0, "seed": EVIL, "accuracy": 0.5}
    path = save_run(tmp_path, row)
    failures = [{"round": 1, "client": EVIL, "reason": EVIL}]
    message = {"round": 1, "task": EVIL, "content": EVIL, "detail": EVIL, "release": None}
    metrics = {
        "format": FORMAT,
        "history": {EVIL: [3.0, 2.0, None, 1.0, 1.0]},
        "failures": failures,
    }
    privacy = {"format": FORMAT, "guarantee": EVIL, "messages": [message], "notes": [EVIL]}
    (path / "metrics.json").write_text(json.dumps(metrics))
    (path / "privacy.json").write_text(json.dumps(privacy))
    (path / "privacy.txt").write_text(EVIL)
    save_run(tmp_path, {**row, "strategy": "b", "status": "failed", "reason": EVIL})
    settings(
        tmp_path,
        strategies=[EVIL],
        parameters={EVIL: EVIL},
        started=EVIL,
        versions={"python": EVIL},
    )
    page = Page(tmp_path)
    assert EVIL in page.all("pre")[0]["text"]
    assert not page.all("img")
    assert not [name for element in page.elements for name in element if name.startswith("on")]
    assert len(page.all("script")) == page.source.count("</script") == 2
    assert EVIL in page.all("h1")[0]["text"]
    assert sum(EVIL in one["text"] for one in page.all("td")) > 2


def test_a_map_has_the_clients_classes_and_clusters_of_its_rows(real):
    (trial,) = [one for one in read_comparison(real).trials if one.strategy.startswith("fed-tsne")]
    drawn, few = map_of_trial(trial.folder), map_of_trial(trial.folder, most_rows=20)
    clients, classes, clusters = drawn["groupings"]
    assert clients["groups"] == [f"site {EVIL[:9]}{index}" for index in range(4)]
    assert classes["groups"][-1] != "(no class)"
    labels = [read_labels(file).labels for file in sorted((trial.folder / "labels").iterdir())]
    codes = np.frombuffer(base64.b64decode(clusters["codes"]), "<u2")
    np.testing.assert_array_equal(
        [int(clusters["groups"][code]) for code in codes], np.concatenate(labels)
    )
    assert (few["n_shown"], few["n_rows"], drawn["n_shown"]) == (20, 150, 150)
    all_numbers, numbers = (
        np.frombuffer(base64.b64decode(one["numbers"]), "<u4") for one in (drawn, few)
    )
    np.testing.assert_array_equal(
        all_numbers, np.concatenate([np.arange(len(part)) for part in labels])
    )
    assert len(numbers) == 20


def test_what_leaves_the_clients_is_said_in_the_words_of_the_report(real, page):
    shown = [one["text"] for one in page.all("pre")]
    for trial in read_comparison(real).of_status("done"):
        words = (trial.folder / "privacy.txt").read_text()
        is_open = "nothing that depends on the rows" not in words
        assert bool(trial.privacy.unprotected) == is_open
        assert bool(trial.privacy.releases) == ("Protected by noise:" in words)
        same = [text for text in shown if f"Privacy report of {trial.strategy}\n" in text]
        assert len(same) == 1  # budgets differ in the guarantee alone
    kinds = [
        one["text"].partition(":")[0]
        for one in page.all("summary")
        if ": feddp-kmeans" in one["text"] and "(" not in one["text"]
    ]
    assert kinds == ["The whole run is covered"]
    cells = [one["text"] for one in page.all("td")]
    for trial in read_comparison(real).of_status("done"):
        assert any(trial.text("guarantee") in cell for cell in cells)


def test_a_strategy_that_is_covered_with_an_epsilon_is_not_called_without_a_guarantee(tmp_path):
    rows = partition(load_dataset("iris"), "iid", n_clients=3, random_state=0).clients
    for epsilon in (None, 2.0):
        strategy = fc.PrivateKMeans(3, epsilon=epsilon, max_norm=12.0)
        row = {"strategy": strategy.name, "data": "iris", "epsilon": epsilon, "seed": 0}
        save_run(tmp_path, row, fc.simulate(strategy, rows, seed=0, progress=False))
    page = Page(tmp_path)
    found = [
        one["text"]
        for one in page.all("summary")
        if one["text"].startswith(("No guarantee", "The whole run"))
    ]
    assert found == [
        "The whole run is covered: private-kmeans",
        "No guarantee: private-kmeans without epsilon",
    ]
    (head,) = [one["text"] for one in page.all("p") if one["text"].startswith("2 runs done")]
    assert head.startswith("2 runs done: one strategy, epsilon 2; 1 seed.")


def test_what_a_cost_is_measured_from_is_said_of_the_strategies_on_the_page_and_of_no_other(
    page, tmp_path
):
    (note,) = [one["text"] for one in page.all("p") if one["text"].startswith("†")]
    assert "fed-tsne-sums on its map" in note
    assert "fedsc among eigenvectors" in note
    rows = partition(load_dataset("iris"), "iid", n_clients=3, random_state=0).clients
    result = fc.simulate(fc.PrivateMixture(3, epsilon=None), rows, seed=0, progress=False)
    save_run(
        tmp_path,
        {"strategy": "private-mixture", "data": "iris", "epsilon": None, "seed": 0},
        result,
    )
    (note,) = [one["text"] for one in Page(tmp_path).all("p") if one["text"].startswith("†")]
    assert note.endswith(
        "The cost of a row is measured by private-mixture from the mean of its component."
    )


def test_sections_are_named_by_their_question_and_data_sets_only_where_there_are_several(tmp_path):
    row = {"strategy": "a", "epsilon": None, "seed": 0, "partition": "column", "accuracy": 0.5}
    save_run(tmp_path, {**row, "data": "numbers.csv"})
    assert [one["text"] for one in Page(tmp_path).all("h2")] == [
        "Which strategy is best?",
        "How to repeat it",
    ]
    save_run(tmp_path, {**row, "data": "iris", "partition": "iid"})
    names = [one["text"] for one in Page(tmp_path).all("h2")]
    assert names[:3] == ["All data sets at a glance", "iris, iid", "numbers.csv"]


@pytest.mark.parametrize(
    "values", [[0.6, 1.0], [1200.0, 1300.0], [123456.0, 123999.0], [1e-5, 2e-5], [0.5, 90.0]]
)
def test_the_numbers_of_an_axis_in_a_table_have_room(values):
    for axis in (linear_axis("cost", values), logarithmic_axis("cost", values)):
        kept = axis.short_ticks
        assert kept
        for (one, text), (other, after) in pairwise(kept):
            assert 18 * (axis.at(other) - axis.at(one)) >= (len(text) + len(after)) / 2 + 1


def test_runs_that_failed_are_listed_with_their_sentence(page, tmp_path):
    assert any(one["text"].endswith(f": It did not end: {EVIL}") for one in page.all("li"))
    assert f"It did not end: {EVIL}: 1 run of fedsc-sums" in [
        one["text"] for one in page.all("summary")
    ]
    assert any("Without a result: fedsc-sums at epsilon 1" in one["text"] for one in page.all("p"))
    row = {
        "strategy": "a",
        "data": "d",
        "epsilon": 1.0,
        "seed": 0,
        "status": "failed",
        "reason": "No room.",
    }
    save_run(tmp_path, row)
    alone = Page(tmp_path)
    assert "No room." in alone.source
    assert "There is nothing to rank." in alone.source
    assert not alone.all("svg", class_="chart")


def test_without_classes_the_cost_decides_and_less_is_better(tmp_path):
    for strategy, cost in (("a", 2.0), ("b", 1.0), ("pooled-kmeans", 0.5)):
        row = {
            "strategy": strategy,
            "data": "d",
            "epsilon": None,
            "seed": 0,
            "cost_per_row": cost,
            "silhouette": 0.5,
        }
        save_run(tmp_path, row)
    (scenario,) = read_comparison(tmp_path).scenarios
    assert (scenario.measure.name, scenario.best(scenario.federated).strategy) == (
        "cost_per_row",
        "b",
    )
    assert "b: 100% above the pooled cost, silhouette 0.500" in verdict(scenario)
    page = Page(tmp_path)
    assert [one["aria-sort"] for one in page.all("th") if "aria-sort" in one] == ["ascending"]
    assert [one["text"] for one in page.all("td") if one["text"].startswith("×")] == ["× 2", "× 4"]


def test_a_folder_without_runs_is_refused_and_stays_as_it_is(tmp_path):
    with pytest.raises(ValueError, match="no run"):
        write_report(tmp_path)
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_while_contenders_are_missing_the_page_counts_the_runs_and_names_no_best(tmp_path):
    fake(tmp_path)
    planned = {"data": "d", "partition": "iid", "status": None, "seed": 0, "epsilon": None}
    settings(tmp_path, runs=[{**planned, "strategy": name, "key": name} for name in ("c", "d")])
    page = Page(tmp_path)
    assert page.all("p")[0]["text"].startswith("15 of 17 runs so far: ")
    assert [one["text"] for one in page.all("p", class_="verdict")] == [
        "c and d have no result yet, so no best strategy is named until they are done."
    ]
    assert "★" not in page.source
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "run.json").write_text('{"key": "ha')
    assert [one.key for one in read_comparison(tmp_path).of_status("")] == ["c", "d"]


def test_what_failed_and_what_was_not_possible_are_told_apart(tmp_path):
    fake(tmp_path)
    row = {"data": "d", "epsilon": 1.0, "seed": 0}
    save_run(tmp_path, {**row, "strategy": "x", "status": "failed", "reason": "It broke."})
    save_run(
        tmp_path, {**row, "strategy": "y", "status": "left out", "reason": "y needs max_norm."}
    )
    page = Page(tmp_path)
    assert page.all("p")[0]["text"].startswith("15 runs done, 1 failed, 1 not possible, left out: ")
    assert [one["text"] for one in page.all("h3")] == ["Failed", "Not possible, and left out"]
    summaries = [one["text"] for one in page.all("summary")]
    assert summaries.index("It broke: 1 run of x") < summaries.index(
        "Give max_norm (--set max_norm=...): 1 run of y"
    )


def test_rows_that_were_set_aside_as_public_are_counted_beside_the_others(tmp_path):
    fake(tmp_path, n_rows=90, n_public=60)
    (facts,) = Page(tmp_path).all("p", class_="facts")
    assert facts["text"] == "90 rows, 60 further rows set aside as public."


def test_the_earlier_page_stays_if_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    fake(tmp_path)
    before = write_report(tmp_path).read_text()
    monkeypatch.setattr("flower_fedclust.harness.page.report_page", lambda comparison: "\ud800")
    with pytest.raises(UnicodeEncodeError):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == before
    assert not list(tmp_path.glob(".report*"))


def test_the_settings_on_the_page_make_the_same_comparison_again(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,site\n" + "1,2,x\n" * 20)
    asked = comparison_from(
        {
            "strategies": "k-fed,feddp-kmeans",
            "datasets": "iris,digits",
            "data": tmp_path / "rows.csv",
            "client_column": "site",
            "partitions": "iid,dirichlet:0.3",
            "epsilons": "none,0.5",
            "seeds": "4,",
            "n_clusters": "2,3",
            "set": {"k-fed.n_local_clusters": 5},
            "grid": {"n_rounds": (2, 4)},
        }
    )
    (tmp_path / "settings.toml").write_text(settings_as_toml(asked.settings()))
    assert comparison_from(settings_from_toml(tmp_path / "settings.toml")) == asked


def test_no_chart_has_more_than_eight_series(tmp_path):
    numbers = np.random.default_rng(0)
    for strategy in (f"strategy-{index}" for index in range(20)):
        for epsilon in (0.5, 2.0):
            row = {
                "strategy": strategy,
                "data": "d",
                "epsilon": epsilon,
                "seed": 0,
                "accuracy": numbers.random(),
            }
            save_run(tmp_path, row)
    charts = re.findall(r'<svg [^>]*class="chart".*?</svg>', Page(tmp_path).source, re.DOTALL)
    assert [chart.count('class="line"') for chart in charts] == [8, 8, 4]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12,346"),
        (0.012345, "0.01235"),
        (3.0, "3.000"),
        (1e-7, "1.000e-07"),
        (math.nan, "–"),
    ],
)
def test_numbers_have_the_digits_that_count(value, text):
    assert number_text(value) == text


def test_a_deviation_has_the_decimals_of_its_mean():
    accuracy = MEASURES["accuracy"]
    assert accuracy.deviation(Spread(0.5, 0.0123)) == "± 0.012"
    assert accuracy.deviation(Spread(0.5, 1e-6)) == "± <0.001"
    assert accuracy.deviation(Spread(0.5, None)) == ""
