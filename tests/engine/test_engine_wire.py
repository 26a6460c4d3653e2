import io

import numpy as np
import pytest
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays

from flower_fedclust.engine.wire import decode, encode, read_json

ARRAYS = [
    np.array(3.5),
    np.zeros((0, 3)),
    np.arange(12.0).reshape(3, 4),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2],
    np.array([True, False]),
    np.array([1.5], dtype=">f4"),
    np.array([np.nan, np.inf, -0.0]),
    np.ones((1,) * 30),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_decoding_undoes_encoding_bit_for_bit(array):
    (decoded,) = decode(encode([array]))
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()


def test_bytes_are_those_of_flower():
    assert encode(ARRAYS).tensors == ndarrays_to_parameters(ARRAYS).tensors
    for one, other in zip(decode(encode(ARRAYS)), parameters_to_ndarrays(encode(ARRAYS)), strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def test_decoded_array_cannot_be_written():
    (decoded,) = decode(encode([np.zeros(3)]))
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1.0


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(5.0), version=version)
    (decoded,) = decode(Parameters([buffer.getvalue()], "numpy.ndarray"))
    assert np.array_equal(decoded, np.arange(5.0))


def test_array_of_python_objects_is_refused_and_not_unpickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        decode(Parameters([buffer.getvalue()], "numpy.ndarray"))


@pytest.mark.parametrize("tensor", [b"", b"x", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"rubbish" * 30])
def test_bytes_that_are_no_array_are_a_value_error(tensor):
    with pytest.raises(ValueError, match=r"\w"):
        decode(Parameters([tensor], "numpy.ndarray"))


def test_truncated_array_is_a_value_error():
    (tensor,) = encode([np.zeros(10)]).tensors
    with pytest.raises(ValueError, match=r"\w"):
        decode(Parameters([tensor[:-3]], "numpy.ndarray"))


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.float64(3), np.arange(4) > 1,
     np.zeros((0, 5)), np.arange(10)[::2]],
    ids=["matrix", "columns first", "number", "truth values", "no rows", "every other"],
)  # fmt: skip
def test_the_bytes_are_read_by_flowers_own_function(array):
    (back,) = parameters_to_ndarrays(encode([array]))
    assert back.dtype == np.asarray(array).dtype
    np.testing.assert_array_equal(back, array)


def test_json_is_read():
    assert read_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert read_json(b"[0.5]") == [0.5]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, "[1", "", b"\xff", "1" * 10_000, "[1]" + " " * 50]
)
def test_json_that_is_wrong_too_long_or_too_deep_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        read_json(text, 50 if text[:1] == "[" and len(text) < 100 else 10**6)
