import numpy as np

from flower_fedclust.engine.rounds import Gather, Reply
from flower_fedclust.strategies.common.spectral import send_labels, split_by_client

REPLIES = [Reply(name, [np.zeros((n, 2))]) for name, n in (("b", 2), ("a", 0), ("c", 3))]


def test_array_is_split_into_the_rows_of_each_client_in_the_order_of_the_replies():
    array = np.arange(10.0).reshape(5, 2)
    found = split_by_client(array, REPLIES)
    assert list(found) == ["b", "a", "c"]
    assert np.array_equal(found["b"], array[:2])
    assert found["a"].shape == (0, 2)
    assert np.array_equal(found["c"], array[2:])


def test_each_client_is_sent_the_labels_of_its_own_rows():
    sending = send_labels(np.arange(5), REPLIES)
    round_ = next(sending)
    assert isinstance(round_, Gather)
    assert round_.task == "keep_labels"
    assert {client: question.arrays[0].tolist() for client, question in round_.question.items()} == {
        "b": [0, 1], "a": [], "c": [2, 3, 4],
    }  # fmt: skip
