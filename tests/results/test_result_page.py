"""The page of a result: it is whole by itself, says what the run says, and holds nothing exact without saying so."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.results.doubts import Doubt
from flower_fedclust.results.pictures import profile_of, shares_and_errors, shortened

EVIL = "</style><script>alert(1)</script>"
SCHEMA = {
    "columns": {
        "age": {"kind": "number", "bounds": [0, 100], "unit": "years"},
        "job": {"kind": "category", "categories": ["clerk", EVIL]},
    }
}


def people(seed):
    numbers = np.random.default_rng(seed)
    kinds = numbers.integers(3, size=1500)
    return pd.DataFrame(
        {
            "age": 20 + 25 * kinds + numbers.normal(size=1500),
            "job": np.where(kinds == 1, EVIL, "clerk"),
        }
    )


@pytest.fixture(scope="module")
def described():
    clients = {f"{EVIL} {seed}": people(seed) for seed in range(3)}
    return fc.simulate(
        "private-kmeans", clients, n_clusters=3, epsilon=3.0, schema=SCHEMA, describe=True, seed=0
    )


class Parsed(HTMLParser):
    """Checks that tags are closed, and collects them."""

    def __init__(self, page):
        super().__init__()
        self.open, self.found = [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_the_words_the_doubts_and_the_guarantee_of_the_run(described, tmp_path):
    path = described.page(tmp_path / "deep" / "page.html", subject=EVIL)
    source = path.read_text()
    text = unescape(re.sub(r"<[^>]*>", "", source))
    for cluster in range(3):
        for sentence in described.clusters.sentences(cluster):
            assert sentence in text
    assert described.privacy.guarantee() in text
    assert described.privacy.meaning() in text
    assert str(described.privacy) in text  # the whole report
    assert all(doubt.sentence in text for doubt in described.doubts)
    assert "at 3 sites" in text
    for message in described.privacy.releases:
        assert message.content in text
    # Complete in itself, and text from outside is never run.
    tags = Parsed(source).found
    assert not any(tag in ("script", "link", "iframe") for tag, _ in tags)
    assert not any(
        name in ("src", "href") and not value.startswith("data:")
        for _, one in tags
        for name, value in one.items()
    )
    assert "<script" not in source
    assert "default-src 'none'" in source


def test_the_page_of_a_covered_run_has_no_exact_number_of_rows_and_says_what_is_exact(described):
    clean = replace(described, doubts=())
    source = page_text(clean)
    assert "4,500" not in source
    (about,) = re.findall(r"of about ([\d,]+) rows", source)[:1]
    assert abs(int(about.replace(",", "")) - 4500) < 200
    assert "so the guarantee holds for whoever reads it" in source
    assert "exact facts" not in source
    with_doubt = replace(described, doubts=(Doubt("empty", "Cluster 1 has no rows.", {}, "rows"),))
    source = page_text(with_doubt)
    assert (
        "This page holds exact facts that no guarantee covers: doubts that rest on rows" in source
    )
    assert "so the guarantee holds" not in source
    source = page_text(replace(clean, clusters=None, sizes=None))
    assert "exact facts that no guarantee covers: sizes counted from labels" in source
    assert "of about" not in source


def page_text(result):
    from flower_fedclust.results.page import result_page

    return unescape(re.sub(r"<[^>]*>", "", result_page(result)))


@pytest.mark.parametrize(
    "strategy",
    [
        fc.KFED(2),
        fc.PrivateFederatedKMeans(3, epsilon=0.05, max_norm=30.0, n_rounds=1),
        fc.FedSCSums(3),
        fc.FedTSNESums(3),
        fc.PrivateDensity(3, epsilon=2.0, max_norm=30.0),
        fc.PrivateMixture(3, epsilon=2.0, max_norm=30.0),
    ],
)
def test_every_kind_of_model_has_a_page(strategy):
    numbers = np.random.default_rng(0)
    rows = [
        10 * np.eye(3)[numbers.integers(3, size=300)] + numbers.normal(size=(300, 3))
        for _ in range(2)
    ]
    result = fc.simulate(strategy, rows, seed=0, progress=False)
    source = page_text(result)
    assert f"Cluster {result.model.n_clusters - 1}" in source
    assert "nan" not in source.partition("The whole privacy report")[0]
    if strategy.epsilon is None:
        assert "Privacy: None." in source
        assert "of 600 rows" in source


def test_a_saved_result_is_described_by_the_command_and_has_the_same_page(described, tmp_path):
    described.save(tmp_path / "result")
    words = ["describe", str(tmp_path / "result"), "--page", str(tmp_path / "page.html")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert str(described.clusters) in said.output
    assert all(str(doubt) in said.output for doubt in described.doubts)
    assert (tmp_path / "page.html").read_text() == described.page(
        tmp_path / "again.html"
    ).read_text()
    assert isinstance(CliRunner().invoke(app, words).exception, FileExistsError)


def test_names_are_cut_where_they_are_alike():
    names = ["hours_tv_per_school_day: do not watch", "hours_tv_per_school_day: <1", "age"]
    for longest in (12, 20, 28):
        short = shortened(names, longest)
        assert len(set(short)) == 3
        assert all(len(one) <= longest for one in short)
        assert short[1].endswith("<1")
    alone = "a name that is long and like no other at all"
    assert shortened([alone, "b"], 20) == ["a name that is long…", "b"]
    twins = ["the same long name 1 of many", "the same long name 2 of many"]
    assert shortened(twins, 16)[0] != shortened(twins, 16)[1]


def test_no_row_of_a_heat_map_is_gray_all_over(described):
    shares, errors = shares_and_errors(described, 3)
    profile = profile_of(described, shares, errors)
    assert not np.isnan(profile.values).all(axis=0).any()
    frame = described.clusters.frame
    loud = replace(described.clusters, deviation=1e6)
    assert profile_of(replace(described, clusters=loud), *shares_and_errors(described, 3)) is None
    assert set(profile.names) <= set(frame["column"]) | {
        f"job: {one}" for one in ("clerk", EVIL, "missing")
    }
