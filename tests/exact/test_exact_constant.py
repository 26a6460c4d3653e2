import numpy as np
import pytest

from flower_fedclust.exact.constant import is_constant, made_once


def of_bytes():
    return np.frombuffer(np.arange(6.0).tobytes()).reshape(2, 3)


def view_of_what_can_change():
    array = np.arange(6.0).reshape(2, 3)
    view = array[:]
    view.flags.writeable = False
    return view


@pytest.fixture
def doubled():
    return made_once(lambda array, times: (times * array,))


def test_of_the_array_of_a_message_it_is_made_once(doubled):
    array = of_bytes()
    assert doubled(array, 2) is doubled(array, 2)
    assert doubled(array, 3)[0].tolist() == (3 * array).tolist()
    assert doubled(array[:1], 3)[0].shape == (1, 3)


def test_what_can_change_is_made_anew(doubled):
    view = view_of_what_can_change()
    assert is_constant(of_bytes())
    assert not is_constant(view)
    assert not is_constant(np.frombuffer(bytearray(48)))
    before = doubled(view, 2)[0].tolist()
    view.base[0] = 7.0
    assert doubled(view, 2)[0].tolist() != before
