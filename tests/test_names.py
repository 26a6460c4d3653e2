import pytest

from flower_fedclust.names import look_up

STRATEGIES = {"fedsc": 1, "fed-tsne": 2, "fed-umap": 3, "feddp-kmeans": None}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_name_that_exists_gives_its_value(name):
    assert look_up(name, STRATEGIES, "strategy") is STRATEGIES[name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("fedcs", "fedsc"), ("fed-tsen", "fed-tsne"), ("umap", "fed-umap"), ("feddp-kmean", "feddp-kmeans")],
)
def test_a_mistyped_name_is_told_the_nearest(typed, meant):
    with pytest.raises(ValueError, match=rf"^There is no strategy '{typed}': did you mean '{meant}'\?$"):
        look_up(typed, STRATEGIES, "strategy")


def test_a_name_that_resembles_none_is_told_all_in_order():
    sentence = r"^There is no data set 'xyz': there are: fed-tsne, fed-umap, feddp-kmeans, fedsc\.$"
    with pytest.raises(ValueError, match=sentence):
        look_up("xyz", STRATEGIES, "data set")


def test_the_nearest_name_is_never_taken_silently():
    with pytest.raises(ValueError, match="did you mean 'fedsc'"):
        look_up("fedsc ", STRATEGIES, "strategy")


def test_another_case_and_the_beginning_of_a_name_are_near():
    table = {"fedsc": 1, "feddp-kmeans": 2, "fed-umap": 3}
    with pytest.raises(ValueError, match="did you mean 'fedsc'"):
        look_up("FedSC", table, "strategy")
    with pytest.raises(ValueError, match="did you mean 'feddp-kmeans'"):
        look_up("feddp", table, "strategy")
