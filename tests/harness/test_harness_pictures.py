"""Pictures of a map: what a PNG shows, and that a page is whole by itself and safe."""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import flower_fedclust as fc
from flower_fedclust.harness.pictures import map_figure as figure_of_groupings
from flower_fedclust.harness.pictures import map_page as page_of_groupings
from flower_fedclust.models import KMeansModel
from flower_fedclust.results.pictures import NO_COLOR, TEN_COLORS, group_colors, groupings_of

RNG = np.random.default_rng(0)
MAP = [RNG.normal(size=(size, 2)) + shift for size, shift in ((30, 0), (20, 5), (50, -5))]
NAMES = ["north", "south", "east"]
CLASSES = [np.arange(len(places)) % 2 for places in MAP]
EVIL = "</script><b>&\"'@@TITLE@@\u2028<!--"


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and the text of each kind of element."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts, self.open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def map_figure(places, names, labels, path, *, title="", columns=None):
    return figure_of_groupings(
        places, groupings_of(places, names, labels, columns or {}), path, title=title
    )


def map_page(places, names, labels, path, *, title="", columns=None):
    return page_of_groupings(
        places, groupings_of(places, names, labels, columns or {}), path, title=title
    )


def page_of(tmp_path, *args, **kwargs):
    return map_page(*args, tmp_path / "map.html", **kwargs).read_text(encoding="utf-8")


def content_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)[
            1
        ]
    )


def numbers(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def pixels_of(path):
    from matplotlib.image import imread

    return np.round(255 * imread(path)[..., :3]).astype(int) @ [1 << 16, 1 << 8, 1]


def colors_in(path):
    colors, counts = np.unique(pixels_of(path), return_counts=True)
    return {
        f"#{color:06x}": count
        for color, count in zip(colors.tolist(), counts.tolist(), strict=True)
    }


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("n_clients", "n_classes"), [(4, 2), (3, 12), (40, 40), (100, 5)])
def test_the_png_has_the_color_of_every_client_and_class(
    matplotlib, tmp_path, n_clients, n_classes
):
    embedding = [RNG.normal(size=(40, 2)) for _ in range(n_clients)]
    labels = [np.arange(40) % n_classes for _ in range(n_clients)]
    names = [f"c{i}" for i in range(n_clients)]
    found = colors_in(
        map_figure(embedding, names, labels, tmp_path / "new" / "map.png", title="a title")
    )
    assert set(group_colors(n_clients)) | set(group_colors(n_classes)) <= set(found)


def test_rows_have_the_color_of_their_own_client(matplotlib, tmp_path):
    places, shift = np.random.default_rng(1).normal(size=(300, 2)), np.array([20, 0])
    pixels = pixels_of(
        map_figure([places - shift, places + shift], ["left", "right"], None, tmp_path / "map.png")
    )
    left, right = (int(color[1:], 16) for color in group_colors(2))
    # Without the legend.
    pixels = pixels[: int(0.9 * len(pixels))]
    middle = pixels.shape[1] // 2
    assert {left} == {left, right} & set(pixels[:, :middle].flat)
    assert {right} == {left, right} & set(pixels[:, middle:].flat)


def test_no_client_covers_another(matplotlib, tmp_path):
    places = np.random.default_rng(1).normal(size=(1000, 2))
    found = colors_in(map_figure([places, places], ["first", "second"], None, tmp_path / "map.png"))
    first, second = (found[color] for color in group_colors(2))
    assert first == pytest.approx(second, rel=0.2)


def test_rows_without_a_class_are_grey(matplotlib, tmp_path):
    known = colors_in(map_figure(MAP, NAMES, CLASSES, tmp_path / "known.png"))
    some = colors_in(map_figure(MAP, NAMES, [None, *CLASSES[1:]], tmp_path / "some.png"))
    # A few pixels at the edges of letters are as gray.
    assert some[NO_COLOR] > known.get(NO_COLOR, 0) + 1000


def test_every_group_has_a_color_of_its_own_and_ten_those_of_the_source():
    for n_groups in (1, 10, 11, 40, 41, 100):
        colors = group_colors(n_groups)
        assert len(set(colors)) == n_groups
        assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
        assert NO_COLOR not in colors
        assert colors[:10] == list(TEN_COLORS[:n_groups]) or n_groups > 40


@pytest.mark.filterwarnings("error")
def test_names_that_matplotlib_would_misread_are_drawn_and_no_backend_is_chosen(
    matplotlib, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    wrong = r"$\wrong{$"
    labels = [np.full(len(part), wrong) for part in MAP]
    assert map_figure(
        MAP, [wrong, "_hidden", "long " * 20], labels, tmp_path / "a.png", title=wrong
    ).exists()


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pip install 'flower-fedclust\[maps\]'"):
        map_figure(MAP, NAMES, None, tmp_path / "a.png")
    assert map_page(MAP, NAMES, None, tmp_path / "map.html").exists()


def test_the_page_holds_the_places_the_groups_and_where_clients_start(tmp_path):
    clusters = [np.full(len(part), index) for index, part in enumerate(MAP)]
    content = content_of(page_of(tmp_path, MAP, NAMES, CLASSES, columns={"cluster": clusters}))
    np.testing.assert_array_equal(
        numbers(content["places"], "<f4").reshape(-1, 2), np.concatenate(MAP).astype(np.float32)
    )
    assert content["starts"] == [0, 30, 50, 100]
    client, label, cluster = content["groupings"]
    assert [client["name"], label["name"], cluster["name"]] == ["client", "class", "cluster"]
    assert client["groups"] == NAMES
    assert label["groups"] == ["0", "1"]
    for grouping, codes in ((client, clusters), (label, CLASSES), (cluster, clusters)):
        np.testing.assert_array_equal(numbers(grouping["codes"], "<u4"), np.concatenate(codes))
        assert grouping["colors"] == group_colors(len(grouping["groups"]))


def test_classes_of_all_clients_are_numbered_together_in_their_natural_order(tmp_path):
    labels = [np.array([10.0, 2.0, np.nan]), ["2", "x", "10"], None, np.array([10, 2])]
    embedding = [np.zeros((size, 2)) for size in (3, 3, 2, 2)]
    page = page_of(tmp_path, embedding, list("abcd"), labels)
    label = content_of(page)["groupings"][1]
    assert label["groups"] == ["2", "10", "x", "(no class)"]
    assert numbers(label["codes"], "<u4").tolist() == [1, 0, 3, 0, 2, 1, 3, 3, 1, 0]
    assert label["colors"] == [*group_colors(3), NO_COLOR]
    assert "A map of 10 rows: 4 clients, 3 classes." in page


def test_the_page_refers_to_nothing_outside(tmp_path):
    page = page_of(tmp_path, MAP, NAMES, CLASSES)
    assert not re.search(
        r"https?:|//[a-z]|src\s*=|href|url\(|@import|fetch\(|XMLHttp|import\(", page
    )
    assert "default-src 'none'" in page
    assert "@@" not in page
    assert len(re.findall("<script", page)) == 2


def test_text_of_the_user_stays_text(tmp_path):
    evil_classes = [np.full(len(part), EVIL) for part in MAP]
    columns = {EVIL: CLASSES}
    page = page_of(
        tmp_path, MAP, [EVIL, "south", "east"], evil_classes, title=EVIL, columns=columns
    )
    plain = page_of(tmp_path, MAP, NAMES, CLASSES, title="a title", columns={"cluster": CLASSES})
    parsed = Parsed(page)
    assert parsed.elements == Parsed(plain).elements
    assert parsed.texts["title"] == parsed.texts["h1"] == [EVIL]
    content = content_of(page)
    assert content["groupings"][0]["groups"][0] == EVIL
    assert content["groupings"][1]["groups"] == [EVIL]
    assert content["groupings"][2]["name"] == EVIL


def test_controls_have_labels_and_the_map_a_text(tmp_path):
    page = page_of(tmp_path, MAP, NAMES, CLASSES)
    elements = Parsed(page).elements
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    labeled = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    assert [attributes["id"] for tag, attributes in elements if tag == "select"] == ["by"]
    assert "by" in labeled
    (canvas,) = [attributes for tag, attributes in elements if tag == "canvas"]
    assert {canvas["aria-labelledby"], canvas["aria-describedby"]} <= ids
    assert canvas["tabindex"] == "0"
    assert "A map of 100 rows: 3 clients, 2 classes." in page
    # What the script looks up is there.
    assert set(re.findall(r'element\("([a-z]+)"\)', page)) <= ids


@pytest.mark.parametrize(
    ("strategy", "n_panels"),
    [
        (fc.PrivateKMeans(3, epsilon=2.0, max_norm=30.0), 3),  # plane, sizes and profile
        # Nothing stands out of the noise.
        (fc.PrivateFederatedKMeans(3, epsilon=0.05, max_norm=30.0, n_rounds=1), 2),
        (fc.FedSCSums(3), 2),  # centers in an embedding, and so no profile by column
        (fc.SPPFGCSums(3), 3),  # prototypes among the rows
        (fc.FedTSNESums(3, n_landmarks=40), 2),  # a map
    ],
)
def test_every_result_can_be_drawn_from_what_was_released(strategy, n_panels, tmp_path):
    numbers = np.random.default_rng(0)
    rows = [
        10 * np.eye(3)[numbers.integers(3, size=300)] + numbers.normal(size=(300, 3))
        for _ in range(2)
    ]
    result = fc.simulate(strategy, rows, seed=0, progress=False)
    figure = result.plot(tmp_path / "clusters.png")
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == n_panels
    assert (tmp_path / "clusters.png").stat().st_size > 5000
    is_hollow = [
        bar.get_facecolor()[:3] == (1.0, 1.0, 1.0) for axes in panels for bar in axes.patches
    ]
    assert any(is_hollow) == (strategy.epsilon is not None and strategy.epsilon < 1)


def test_of_many_clusters_not_every_one_has_its_number_at_an_axis():
    rows = np.random.default_rng(0).normal(size=(101, 3))
    result = fc.simulate(fc.KFED(3), [rows, rows], seed=0)
    result = replace(result, labels_of_clients=[np.arange(101)], model=KMeansModel(rows), floor=0)
    _, sizes, profile = result.plot().axes[:3]
    assert sizes.get_yticks().tolist() == list(range(0, 101, 3))
    assert profile.get_xticks().tolist() == list(range(0, 101, 6))
