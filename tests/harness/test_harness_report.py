"""The report: that its numbers are those of the runs, and that the page is whole, readable and safe."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from unequal import unequal_classes

import flower_fedclust as fc
from flower_fedclust.data import load_dataset, partition
from flower_fedclust.format import FORMAT
from flower_fedclust.harness.report import write_report
from flower_fedclust.harness.report.about import command_of, settings_of
from flower_fedclust.harness.report.colors import PANELS, readable_color
from flower_fedclust.harness.report.data import Spread, read_comparison
from flower_fedclust.harness.report.maps import read_map
from flower_fedclust.harness.report.pictures import pareto_front
from flower_fedclust.harness.report.privacy import DERIVED, HARMLESS, PROTECTED, UNPROTECTED, Reported
from flower_fedclust.harness.report.ranks import alike, critical_difference, ranks_over_scenarios, ranks_over_seeds
from flower_fedclust.harness.report.texts import NOTHING, deviation_text, number_text
from flower_fedclust.harness.report.verdict import LEVEL, certainty, differences, holm, verdict
from flower_fedclust.harness.summary import failures_by_remedy
from flower_fedclust.numerics.metrics import add_tables, agreement, count_table
from flower_fedclust.results.labels import read_labels
from flower_fedclust.results.pictures.groupings import group_colors

EVIL = "</script><img src=x onerror=alert(1)>\"'&@@TITLE@@"
BACKS = ("page", "panel", "best")


class Page(HTMLParser):
    """The elements of a page: each a tag, attributes, the tags around it, and the text inside."""

    def __init__(self, source):
        super().__init__()
        self.source, self.elements, self.open = source, [], []
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        element = {"tag": tag, "around": [one["tag"] for one in self.open], "text": "", **dict(attributes)}
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
    key = f"{row['strategy']}__{row['data']}__iid__epsilon-{row['epsilon']}__seed-{row['seed']}"
    path = folder / "runs" / "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in key)
    row = {"key": path.name, "partition": "iid", "status": "done", "reason": None, **row}
    if result is not None:
        result.save(path)
        row |= {
            **result.metrics,
            "epsilon_spent": result.privacy.to_dict()["epsilon"],
            "covers_everything": result.privacy.covers_everything,
            "privacy_unit": result.privacy.unit,
            "noise": result.privacy.noise,
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": result.seconds,
            "rounds": result.summary()["rounds"],
        }
    path.mkdir(parents=True, exist_ok=True)
    if classes is not None:
        lines = [f"{name},{one}" for name, part in zip(result.names, classes, strict=True) for one in part]
        (path / "classes.csv").write_text("\n".join(["client,class", *lines]) + "\n")
    (path / "run.json").write_text(json.dumps(row))
    return path


def settings(folder, **more):
    known = {
        "format": FORMAT,
        "strategies": ["pooled-kmeans", "k-fed"],
        "data": ["iris"],
        "partitions": ["iid"],
        "seeds": [0, 1],
    }
    (folder / "comparison.json").write_text(json.dumps({**known, "started": "2026-01-02T03:04:05+00:00", **more}))
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Strategies of every kind on iris: pooled, plain, private, with a history, with a map, and one that failed."""
    pytest.importorskip("openTSNE")
    folder = settings(tmp_path_factory.mktemp("real"), epsilons=[0.5, 1.0])
    # Not written to the disk: it is the other part of the rows that is public.
    for seed in (0, 1):
        rows = partition(load_dataset("iris"), "iid", n_clients=4, random_state=seed)
        public = rows.clients[0][:30]
        strategies = [(fc.PooledKMeans(3), None), (fc.KFED(3), None), (fc.FedSC(3, n_rounds=4), None)]
        for epsilon in (0.5, 1.0):
            strategies.append((fc.FedDPKMeans(3, server_data=public, epsilon=epsilon), epsilon))
        if seed == 0:
            strategies.append((fc.FedTSNESums(3), None))
        for strategy, epsilon in strategies:
            names = [f"site {EVIL[:9]}{index}" for index in range(4)]
            result = fc.simulate(strategy, rows.clients, labels=rows.labels, names=names, seed=seed)
            row = {"strategy": strategy.name, "data": "iris", "epsilon": epsilon, "seed": seed, "n_rows": 150}
            save_run(folder, row, result, rows.labels)
    failed = {"strategy": "fedsc-sums", "data": "iris", "epsilon": 1.0, "seed": 0}
    save_run(folder, {**failed, "status": "failed", "reason": f"It did not end: {EVIL}"})
    return folder


@pytest.fixture(scope="module")
def page(real):
    return Page(write_report(real).read_text(encoding="utf-8"))


def fake(folder, **columns):
    """Write runs with made-up numbers: three strategies, two budgets, three seeds."""
    numbers = np.random.default_rng(0)
    rows = []
    for strategy in ("pooled-kmeans", "a", "b"):
        for epsilon in (None,) if strategy == "pooled-kmeans" else (0.5, 2.0):
            for seed in range(3):
                made = {"accuracy": numbers.random(), "cost_per_row": numbers.gamma(1), "bytes_up": 7, "bytes_down": 1}
                row = {"strategy": strategy, "data": "d", "epsilon": epsilon, "seed": seed, **made, **columns}
                rows.append({**row, "covers_everything": epsilon is not None})
                (save_run(folder, rows[-1]) / "centers.csv").write_text("0\n")
    return pd.DataFrame(rows)


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_the_page_is_whole_by_itself(page):
    policy = page.all("meta", **{"http_equiv": "Content-Security-Policy"})[0]["content"]
    assert "default-src 'none'" in policy
    assert not page.all("link")
    assert not page.all("img")
    for element in page.elements:
        assert not element.get("src")
        assert element.get("href", "#").startswith("#")
    assert "http://" not in page.source
    assert "https://" not in page.source


def test_every_table_has_a_caption_and_scopes_and_a_box_that_the_keyboard_reaches(page):
    captions = {one["id"] for one in page.all("caption")}
    assert len(page.all("table")) == len(captions) > 5
    assert {one["aria-labelledby"] for one in page.all("div", class_="box", tabindex="0", role="group")} == captions
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    texts = [one["text"] for one in page.all("caption")]
    assert len(set(texts)) == len(texts)


def test_ids_are_unique_and_what_is_referred_to_is_there(page):
    ids = [one["id"] for one in page.elements if "id" in one]
    assert len(set(ids)) == len(ids)
    for element in page.elements:
        for name in element.get("aria-labelledby", "").split():
            assert name in ids
        if element["tag"] == "a":
            assert element["href"].removeprefix("#") in ids


def test_every_picture_says_what_it_is_and_has_its_numbers_beside_it(page):
    charts = page.all("svg", class_="chart")
    assert len(charts) >= 3
    assert all(one["role"] == "img" for one in charts)
    names = [one["aria-label"] for one in charts]
    assert len(set(names)) == len(names)
    assert set(names) <= {one["text"] for one in page.all("caption")}
    numbers = [one["text"] for one in page.all("summary") if one["text"].startswith("The numbers of this chart")]
    assert numbers == [f"The numbers of this chart ({name})" for name in names]
    assert page.all("canvas")[0]["aria-label"].startswith("iris, iid: fed-tsne-sums.")


def test_what_a_pointer_shows_of_a_map_is_said_to_the_keyboard_and_kept_from_the_tree(page):
    (canvas,) = page.all("canvas")
    assert (canvas["role"], canvas["tabindex"]) == ("application", "0")
    assert "Arrow keys" in canvas["aria-label"]
    assert len(page.all("span", class_="unseen", role="status")) == 1
    tips = [one for one in page.all("div", class_="tip") if "canvas" not in one["around"]]
    assert tips
    assert all("hidden" in one for one in tips)


def test_headings_go_down_a_level_at_a_time(page):
    levels = [int(one["tag"][1]) for one in page.elements if re.fullmatch("h[1-6]", one["tag"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_page_has_a_language_a_way_past_its_links_and_nothing_that_moves(page):
    assert page.all("html")[0]["lang"] == "en"
    first = next(one for one in page.elements if one["tag"] == "a")
    assert (first["class"], first["href"]) == ("skip", f"#{page.all('main')[0]['id']}")
    assert not re.search(r"\b(animation|transition|scroll-behavior|requestAnimationFrame)\b", page.source)
    assert all(one["type"] == "button" for one in page.all("button"))


def test_a_row_is_called_by_its_strategy_and_its_epsilon(page):
    rows = [one for one in page.all("th", scope="row") if "data-value" in one]
    named = list(zip(rows[::2], rows[1::2], strict=True))
    assert ("feddp-kmeans", "0.5") in [(one["data-value"], other["text"]) for one, other in named]
    assert (
        len({(one["data-value"], other["text"]) for one, other in named}) == len(named) == 6
    )  # and the one that failed is not among them


def test_what_is_not_there_is_said_in_words(page):
    dashes = [one for one in page.elements if one["text"] == NOTHING]
    assert dashes
    assert all(one["aria-hidden"] == "true" for one in dashes)


def luminance(color):
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def ratio(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.fixture(scope="module")
def palette(page):
    """The colours of the style sheet, light and dark."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in re.findall(r":root {([^}]*)}", page.source)
    )
    assert light.keys() == dark.keys()
    return {"light": light, "dark": dark}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_and_every_mark_stands_out_from_what_lies_behind(palette, scheme):
    colors = palette[scheme]
    for text, behind in [("open", "open-back"), ("covered", "covered-back"), *(("accent", one) for one in BACKS)]:
        assert ratio(colors[text], colors[behind]) >= 4.5
    for text in ("text", "soft"):
        assert min(ratio(colors[text], colors[behind]) for behind in BACKS) >= 4.5
    for mark in ("strong-line", "accent", *(f"c{index}" for index in range(10))):
        assert min(ratio(colors[mark], colors[behind]) for behind in ("panel", "page")) >= 3


def test_nothing_lets_its_background_through(page):
    styles = "".join(re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL))
    assert "opacity:" not in styles


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_rows_of_a_map_stand_out_in_every_group(page, palette, scheme):
    assert PANELS[scheme] == palette[scheme]["panel"]
    (content,) = json.loads(page.all("script", id="content")[0]["text"])
    for grouping in content["groupings"]:
        assert min(ratio(color, PANELS[scheme]) for color in grouping["colors"][scheme]) >= 3
    for n_groups in (10, 40, 100):
        colors = [readable_color(color, PANELS[scheme]) for color in group_colors(n_groups)]
        assert min(ratio(color, PANELS[scheme]) for color in colors) >= 3
    first = [readable_color(color, PANELS[scheme]) for color in group_colors(10)]
    assert len(set(first)) == 10


def test_headings_of_results_are_buttons_and_one_says_how_the_table_is_sorted(page):
    assert len([one for one in page.all("button") if "thead" in one["around"]]) > 8
    assert [one["aria-sort"] for one in page.all("th") if "aria-sort" in one] == ["descending"]


def test_values_that_are_not_there_are_not_printed(page, tmp_path):
    strange = {"nmi": math.nan, "ari": math.inf, "seconds": None, "epsilon_spent": "", "rounds": "nan"}
    fake(tmp_path, **strange)
    for one in (page, page_of(tmp_path)):
        texts = [element["text"] for element in one.elements if element["tag"] in ("td", "th", "p", "text", "li")]
        words = {word.strip("()*,.±").lower() for text in texts for word in text.split()}
        assert not words & {"nan", "inf", "undefined", "null"}
        assert not [key for element in one.elements for key in element.values() if key == "nan"]


def test_means_and_deviations_are_those_of_pandas(tmp_path):
    frame = fake(tmp_path)
    grouped = frame.groupby(["strategy", "epsilon"], dropna=False)["accuracy"].agg(["mean", "std"])
    cells = page_of(tmp_path).all("td", data_column="accuracy")
    found = sorted((float(one["data-value"]), float(one["data-deviation"])) for one in cells)
    np.testing.assert_allclose(found, sorted(map(tuple, grouped.to_numpy())), rtol=1e-12)
    shown = {f"{mean:.3f}± {deviation:.3f}" for mean, deviation in grouped.to_numpy()}
    assert {one["text"].rpartition(") ")[2] for one in cells} == shown


def test_the_best_of_those_that_do_not_pool_is_marked_not_by_colour_alone(tmp_path):
    frame = fake(tmp_path)
    means = frame.groupby(["strategy", "epsilon"], dropna=False)[["accuracy", "cost_per_row"]].mean()
    means = means.drop(index="pooled-kmeans")
    page = page_of(tmp_path)
    for column, best in (("accuracy", means["accuracy"].max()), ("cost_per_row", means["cost_per_row"].min())):
        starred = [one for one in page.all("td", data_column=column) if "★" in one["text"]]
        assert [float(one["data-value"]) for one in starred] == pytest.approx([best])
        assert all("(best)" in one["text"] for one in starred)


def test_the_pooled_result_is_a_reference_and_above_all_others(page):
    assert [one["text"] for one in page.all("em")] == ["pooled reference"]
    first = next(one for one in page.elements if one["tag"] == "tbody")
    assert first["class"] == "pooled"


def test_a_cost_in_another_space_is_never_the_best(real, page):
    (scenario,) = read_comparison(real).scenarios
    comparable = {one.strategy: one.is_comparable("cost_per_row") for one in scenario.contenders if one.trials}
    assert comparable == {
        "pooled-kmeans": True,
        "k-fed": True,
        "feddp-kmeans": True,
        "fedsc": False,
        "fed-tsne-sums": False,
    }
    costs = page.all("td", data_column="cost_per_row")
    assert sum("†" in one["text"] for one in costs) == 2
    assert not [one for one in costs if "†" in one["text"] and "★" in one["text"]]


def test_the_front_is_that_of_brute_force():
    numbers = np.random.default_rng(0)
    for n_points in (1, 2, 5, 60):
        prices, gains = numbers.integers(0, 12, (2, n_points)).astype(float)
        expected = [
            not any(
                prices[j] <= prices[i] and gains[j] >= gains[i] and (prices[j] < prices[i] or gains[j] > gains[i])
                for j in range(n_points)
            )
            for i in range(n_points)
        ]
        assert pareto_front(prices.tolist(), gains.tolist()) == expected
    assert pareto_front([], []) == []


def test_text_from_outside_is_shown_and_never_run(tmp_path):
    row = {"strategy": EVIL, "data": EVIL, "epsilon": 1.0, "seed": EVIL, "accuracy": 0.5}
    path = save_run(tmp_path, row)
    history = {EVIL: [3.0, 2.0, None, 1.0, 1.0]}
    failures = [{"round": 1, "client": EVIL, "reason": EVIL}]
    message = {"round": 1, "task": EVIL, "content": EVIL, "detail": EVIL, "release": None}
    (path / "metrics.json").write_text(json.dumps({"history": history, "failures": failures}))
    (path / "privacy.json").write_text(json.dumps({"guarantee": EVIL, "messages": [message], "notes": [EVIL]}))
    (path / "embedding").mkdir()
    (path / "embedding" / "0-x.csv").write_text("x,y\n0,1\n1,0\n")
    (path / "classes.csv").write_text('client,class\n"' + EVIL.replace('"', '""') + '",</script>\n' * 2)
    save_run(tmp_path, {**row, "strategy": "b", "status": "failed", "reason": EVIL})
    settings(tmp_path, strategies=[EVIL], parameters={EVIL: EVIL}, started=EVIL, versions={"python": EVIL})
    page = page_of(tmp_path)
    assert not page.all("img")
    assert not [name for element in page.elements for name in element if name.startswith("on")]
    assert len(page.all("script")) == page.source.count("</script") == 2
    assert EVIL in page.all("h1")[0]["text"]
    assert sum(EVIL in one["text"] for one in page.all("td")) > 5


def test_clients_of_a_map_are_found_again_by_the_numbers_of_their_files(real):
    (trial,) = [one for one in read_comparison(real).trials if one.strategy.startswith("fed-tsne")]
    drawn = read_map(trial)
    clients, classes, clusters = drawn.groupings
    assert clients.groups == [f"site {EVIL[:9]}{index}" for index in range(4)]
    assert classes.groups[-1] != "(no class)"
    files = sorted((trial.folder / "labels").iterdir())
    labels = np.concatenate([read_labels(file).labels for file in files])
    np.testing.assert_array_equal([int(clusters.groups[code]) for code in clusters.codes], labels)
    few = read_map(trial, most_rows=20)
    assert (len(few.places), few.n_rows) == (20, 150)
    matching = [np.flatnonzero((drawn.places == place).all(axis=1))[0] for place in few.places]
    np.testing.assert_array_equal(drawn.numbers[matching], few.numbers)


def test_what_leaves_the_clients_is_said_in_the_words_of_the_report(real, page):
    text = page.source
    for trial in read_comparison(real).trials:
        if not trial.is_done:
            continue
        reported = Reported(trial, trial.privacy_report)
        words = (trial.folder / "privacy.txt").read_text()
        status = {reported.status(message) for message in reported.report.messages}
        assert (UNPROTECTED in status) == ("nothing that depends on the rows" not in words)
        assert (PROTECTED in status) == ("Protected by noise:" in words)
        assert (DERIVED in status) == ("Computed from nothing but" in words)
        assert (HARMLESS in status) == ("independent of the values of the rows:" in words)
    assert "The whole run is covered by" in text
    assert ">unprotected</strong>" in text
    assert "noise multiplier" in text


def test_runs_that_failed_are_listed_with_their_sentence(page):
    assert any(one["text"].endswith(f": It did not end: {EVIL}") for one in page.all("li"))
    assert f"It did not end: {EVIL}: 1 run of fedsc-sums" in [one["text"] for one in page.all("summary")]
    assert any("Without a result: fedsc-sums, epsilon 1" in one["text"] for one in page.all("p"))


def test_a_folder_with_nothing_but_failures_has_a_report(tmp_path):
    for seed in range(2):
        row = {"strategy": "a", "data": "d", "epsilon": 1.0, "seed": seed}
        save_run(tmp_path, {**row, "status": "failed", "reason": "There is no room."})
    page = page_of(tmp_path)
    assert "There is no room." in page.source
    assert "There is nothing to rank." in page.source
    assert not page.all("svg", class_="chart")


def test_without_classes_the_cost_decides_and_less_is_better(tmp_path):
    for strategy, cost in (("a", 2.0), ("b", 1.0), ("pooled-kmeans", 0.5)):
        row = {"strategy": strategy, "data": "d", "epsilon": None, "seed": 0, "cost_per_row": cost, "silhouette": 0.5}
        path = save_run(tmp_path, row)
        (path / "centers.csv").write_text("0\n")
    (scenario,) = read_comparison(tmp_path).scenarios
    assert (scenario.measure, scenario.best(scenario.federated).strategy) == ("cost_per_row", "b")
    page = page_of(tmp_path)
    assert [one["aria-sort"] for one in page.all("th") if "aria-sort" in one] == ["ascending"]
    gaps = [one["text"] for one in page.all("td") if one["text"].startswith("×")]
    assert gaps == ["× 2", "× 4"]
    assert verdict(scenario).startswith("Best is b: 100% above the pooled cost, silhouette 0.500")
    assert len(page.all("td", data_column="silhouette")) == 3


def test_a_folder_without_runs_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no run of a comparison yet"):
        write_report(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        write_report(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_the_table_alone_is_enough(tmp_path):
    frame = fake(tmp_path / "whole")
    frame.assign(key=range(len(frame)), status="done", partition="iid").to_csv(tmp_path / "results.csv", index=False)
    (alone,), (whole,) = (read_comparison(one).scenarios for one in (tmp_path, tmp_path / "whole"))
    for one, other in zip(alone.contenders, whole.contenders, strict=True):
        assert (one.strategy, one.epsilon, one.is_covered) == (other.strategy, other.epsilon, other.is_covered)
        assert one.spread("accuracy") == other.spread("accuracy")
    assert page_of(tmp_path).all("svg", class_="chart")


def test_a_run_without_a_result_is_named_and_not_counted(tmp_path):
    fake(tmp_path)
    (tmp_path / "runs" / "half").mkdir()
    (tmp_path / "runs" / "half" / "run.json").write_text('{"key": "ha')
    assert read_comparison(tmp_path).unfinished == ["half"]
    assert "still at work: half." in page_of(tmp_path).source
    for partition_name, said in (("iid", "4"), ("column", None)):  # a column says how many clients there are
        settings(tmp_path, partitions=[partition_name], n_clients=4)
        assert dict(settings_of(read_comparison(tmp_path))).get("n clients") == said


def test_the_page_of_before_stays_where_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    fake(tmp_path)
    before = write_report(tmp_path).read_text()
    monkeypatch.setattr("flower_fedclust.harness.report.report_page", lambda comparison: "\ud800")
    with pytest.raises(UnicodeEncodeError):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == before
    assert not list(tmp_path.glob(".report*"))


def test_the_command_makes_the_same_comparison_again():
    from flower_fedclust.harness.comparison import comparison_from

    asked = comparison_from(
        {
            "strategies": "k-fed,feddp-kmeans",
            "datasets": "iris,digits",
            "partitions": "iid,dirichlet:0.3",
            "epsilons": "none,0.5",
            "seeds": "4,",
            "set": {"k-fed.n_local_clusters": 5},
        }
    )
    words = command_of(asked.settings()).split()
    assert words[:2] == ["fedclust", "compare"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    name, value = given.pop("--set").split("=")
    assert given.pop("--out") == "DIR"
    options = {option.removeprefix("--"): text for option, text in given.items()}
    assert comparison_from({**options, "set": {name: int(value)}}) == asked


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345.6, "12,346"), (0.012345, "0.01235"), (3.0, "3.000"), (1e-7, "1.000e-07"), (math.nan, "–")],
)
def test_numbers_have_the_digits_that_count(value, text):
    assert number_text(value) == text


def test_a_deviation_has_the_decimals_of_its_mean():
    assert deviation_text(Spread(0.5, 0.0123, 3), "0.500") == "± 0.012"
    assert deviation_text(Spread(0.5, 1e-6, 3), "0.500") == "± <0.001"
    assert deviation_text(Spread(0.5, None, 1), "0.500") == ""


def of_unequal_classes(folder, runs, n_clusters=6):
    """Write runs that found the given clusters in the table of unequal classes, scored as a run is scored."""
    table = unequal_classes()
    kinds = np.unique(table["kind"], return_inverse=True)[1]
    rows = table[["first", "second", "third"]].to_numpy()
    spread = float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
    for strategy, epsilon, clusters in runs:
        for seed, found in enumerate(clusters):
            means = {one: rows[found == one].mean(axis=0) for one in np.unique(found)}
            cost = float(((rows - np.array([means[one] for one in found])) ** 2).sum(axis=1).mean())
            row = {
                **agreement(add_tables([count_table(kinds, found, n_clusters)])),
                "n_classes": 2,
                "n_clusters": n_clusters,
                "n_clients": 4,
                "cost_per_row": cost,
                "cost_of_one_cluster": spread,
                "largest_cluster": float(np.bincount(found).max() / len(found)),
                "bytes_up": 4000,
                "bytes_down": 1,
                "seconds": 2.0,
                "covers_everything": epsilon is not None,
            }
            named = {"strategy": strategy, "data": "unequal", "epsilon": epsilon, "seed": seed}
            (save_run(folder, named | row) / "centers.csv").write_text("0\n")
    return settings(folder)


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    """The issue's comparison: what puts all rows into one cluster has by far the highest accuracy."""
    rows = unequal_classes()[["first", "second", "third"]].to_numpy()
    found = [KMeans(6, n_init=1, random_state=seed).fit_predict(rows) for seed in range(5)]
    worse = [np.where(np.random.default_rng(seed).random(len(one)) < 0.3, 0, one) for seed, one in enumerate(found)]
    one_cluster = [np.zeros(len(rows), dtype=int)] * 5
    runs = [
        ("pooled-kmeans", None, found),
        ("federated-kmeans", None, found),
        ("federated-kmeans-private", 1.0, one_cluster),
        ("federated-kmeans-private", 4.0, worse),
    ]
    return of_unequal_classes(tmp_path_factory.mktemp("unequal"), runs)


def test_a_run_that_put_all_rows_into_one_cluster_is_marked_and_never_crowned(collapsed):
    (scenario,) = read_comparison(collapsed).scenarios
    accuracy = {one.name: one.spread("accuracy").mean for one in scenario.contenders}
    assert max(accuracy, key=accuracy.get) == "federated-kmeans-private, epsilon 1"
    assert accuracy["federated-kmeans-private, epsilon 1"] == pytest.approx(0.745, abs=5e-4)
    assert scenario.measure == "ari"
    assert [one.name for one in scenario.contenders if scenario.collapse(one)] == [
        "federated-kmeans-private, epsilon 1"
    ]
    assert scenario.best(scenario.federated).strategy == "federated-kmeans"
    page = page_of(collapsed)
    assert not [one for one in page.all("td", data_column="accuracy") if "★" in one["text"] and "0.745" in one["text"]]
    assert [one["text"] for one in page.all("em")] == ["pooled reference", "collapsed: all rows in one cluster"]
    charts = [one["text"] for one in page.all("svg", class_="chart")]
    assert charts
    assert not [text for text in charts if "epsilon 1" in text]


def test_the_verdict_says_who_is_best_at_what_price(collapsed):
    (scenario,) = read_comparison(collapsed).scenarios
    sentence = verdict(scenario)
    assert sentence.startswith("Best is federated-kmeans: ARI ")
    assert "at the pooled cost, 1.0 kB a site, 2 s; with the whole run covered, federated-kmeans-private at" in sentence
    assert re.search(
        r"epsilon 4: ARI 0\.\d{3} \(pooled 0\.\d{3}\), \d+% above the pooled cost, 1.0 kB a site, 2 s\.", sentence
    )
    assert sentence in page_of(collapsed).source
    assert certainty(scenario).startswith("“Better” may be said of federated-kmeans over the other (paired t-tests")


def test_where_everything_collapsed_nothing_is_crowned(tmp_path):
    one_cluster = [np.zeros(2880, dtype=int)]
    of_unequal_classes(tmp_path, [("pooled-kmeans", None, one_cluster), ("a", 1.0, one_cluster)])
    (scenario,) = read_comparison(tmp_path).scenarios
    assert scenario.best(scenario.contenders) is None
    assert verdict(scenario) == "No strategy is better than one cluster for all."
    assert "★</span>" not in page_of(tmp_path).source


def test_classes_that_no_clusters_find_do_not_rank_and_are_no_collapse(tmp_path):
    numbers = np.random.default_rng(7)
    guesses = [[numbers.integers(6, size=2880)] for _ in range(2)]
    of_unequal_classes(tmp_path, [("a", None, guesses[0]), ("b", None, guesses[1])])
    (scenario,) = read_comparison(tmp_path).scenarios
    assert scenario.measure == "cost_per_row"
    assert not any(map(scenario.collapse, scenario.contenders))


def test_accuracy_decides_where_there_are_as_many_clusters_as_classes(tmp_path):
    kinds = np.unique(unequal_classes()["kind"], return_inverse=True)[1]
    nearly = np.where(np.arange(len(kinds)) % 10 == 0, 0, kinds)
    of_unequal_classes(tmp_path, [("a", None, [nearly]), ("b", None, [np.ones(2880, dtype=int)])], n_clusters=2)
    (scenario,) = read_comparison(tmp_path).scenarios
    assert scenario.measure == "accuracy"
    assert [scenario.collapse(one) for one in scenario.contenders] == ["", "all rows in one cluster"]


def test_accuracy_does_not_rank_where_one_cluster_for_all_has_more(tmp_path):
    """As on the issue's table in two clusters: every strategy is below 0.745, and which comes nearest says nothing."""
    kinds = np.unique(unequal_classes()["kind"], return_inverse=True)[1]
    half = np.where(np.arange(len(kinds)) % 2 == 0, 0, kinds)
    third = np.where(np.arange(len(kinds)) % 3 == 0, 1 - kinds, kinds)
    of_unequal_classes(tmp_path, [("a", None, [half]), ("b", None, [third])], n_clusters=2)
    for path in tmp_path.glob("runs/*"):
        (path / "classes.csv").write_text("\n".join(["client,class", *(f"0,{kind}" for kind in kinds)]))
    (scenario,) = read_comparison(tmp_path).scenarios
    assert max(one.accuracy for one in scenario.contenders) < 0.745
    assert scenario.measure == "ari"


def test_holm_is_that_of_the_paper():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_the_critical_difference_is_that_of_the_paper():
    """Demšar 2006, section 3.2.2 and table 6: four classifiers on 14 data sets, and 2.569 as the critical value."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
    assert alike([1.964, 2.0, 2.893, 3.143], 1.25) == [(0, 3)]
    assert alike([1.964, 2.0, 2.893, 3.143], 0.9) == [(0, 1), (1, 2), (2, 3)]
    assert alike([1.0, 2.0, 3.0], 0.5) == [(0, 0), (1, 1), (2, 2)]


def test_ranks_tell_of_seeds_and_of_data_sets_where_there_are_enough(tmp_path):
    numbers = np.random.default_rng(0)
    for data in (f"d{index}" for index in range(5)):
        for strategy, mean in (("a", 0.9), ("b", 0.8), ("c", 0.3), ("d", 0.2)):
            for seed in range(5 if data == "d0" else 1):
                row = {"strategy": strategy, "data": data, "epsilon": None, "seed": seed}
                save_run(tmp_path, {**row, "accuracy": mean + 0.01 * numbers.normal()})
    read = read_comparison(tmp_path)
    for ranks in (ranks_over_seeds(read.scenarios[0]), ranks_over_scenarios(read.scenarios)):
        assert [one.strategy for one in ranks.contenders] == ["a", "b", "c", "d"]
        assert ranks.means == [1, 2, 3, 4]
        assert ranks.critical_difference == pytest.approx(2.098, abs=1e-3)
        assert ranks.letters == ["a", "ab", "ab", "b"]
        assert ranks.p_value == pytest.approx(0.0018, abs=1e-4)
    assert ranks_over_seeds(read.scenarios[1]) is None
    captions = [one["text"] for one in page_of(tmp_path).all("caption") if "mean rank over" in one["text"]]
    assert [one.partition(". ")[0] for one in captions] == [
        "All data sets: mean rank over 5 data sets",
        "d0, iid: mean rank over 5 seeds on this data set",
    ]


def test_of_what_chance_may_have_decided_better_is_not_said(tmp_path):
    numbers = np.random.default_rng(1)
    for strategy, mean, deviation in (("a", 0.9, 0.01), ("b", 0.895, 0.02), ("c", 0.5, 0.01)):
        for seed in range(5):
            row = {"strategy": strategy, "data": "d", "epsilon": None, "seed": seed}
            save_run(tmp_path, {**row, "accuracy": mean + deviation * numbers.normal()})
    (scenario,) = read_comparison(tmp_path).scenarios
    sure = {one.other.strategy: one.p_value < LEVEL for one in differences(scenario)}
    assert sure == {next(name for name in ("b", "a") if name in sure): False, "c": True}
    assert "over 1 of the 2 others" in certainty(scenario)
    assert certainty(scenario).endswith("but not over b.") or certainty(scenario).endswith("but not over a.")


def test_two_seeds_cannot_tell_a_difference_from_chance(tmp_path):
    for strategy, accuracy in (("a", 0.9), ("b", 0.1)):
        for seed in range(2):
            row = {"strategy": strategy, "data": "d", "epsilon": None, "seed": seed, "accuracy": accuracy + seed / 50}
            save_run(tmp_path, row)
    (scenario,) = read_comparison(tmp_path).scenarios
    assert certainty(scenario) == "Which is better cannot be told from chance: that takes at least 3 seeds."


def test_no_chart_has_more_than_eight_series(tmp_path):
    numbers = np.random.default_rng(0)
    for strategy in (f"strategy-{index}" for index in range(20)):
        for epsilon in (0.5, 2.0):
            row = {"strategy": strategy, "data": "d", "epsilon": epsilon, "seed": 0, "accuracy": numbers.random()}
            save_run(tmp_path, row)
    charts = re.findall(r'<svg [^>]*class="chart".*?</svg>', page_of(tmp_path).source, re.DOTALL)
    assert [chart.count("<polyline") for chart in charts] == [8, 8, 4]


def test_failures_are_told_by_what_would_mend_them():
    failed = [
        ("a", "max_norm is missing; noise needs one."),
        ("b", "b needs max_norm."),
        ("b", "b needs max_norm."),
        ("c", "It broke."),
    ]
    assert failures_by_remedy(failed) == {"give max_norm (--set max_norm=...)": {"a": 1, "b": 2}, "It broke.": {"c": 1}}
