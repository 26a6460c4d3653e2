import pytest

from flower_fedclust.names import look_up

STRATEGIES = {"fedsc": 1, "fed-tsne": 2, "fed-umap": 3, "feddp-kmeans": None}


def test_a_name_that_exists_gives_its_value():
    assert {name: look_up(name, STRATEGIES, "strategy") for name in STRATEGIES} == STRATEGIES


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fedcs", "fedsc"),
        ("fed-tsen", "fed-tsne"),
        ("umap", "fed-umap"),
        ("feddp-kmean", "feddp-kmeans"),
        ("fedsc ", "fedsc"),
        ("FedSC", "fedsc"),
        ("feddp", "feddp-kmeans"),
        ("xyz", "fed-tsne, fed-umap, feddp-kmeans, fedsc"),
    ],
)
def test_a_mistyped_name_is_told_the_nearest_and_never_taken(typed, meant):
    with pytest.raises(ValueError, match=rf"'{typed}'.*{meant}"):
        look_up(typed, STRATEGIES, "strategy")
