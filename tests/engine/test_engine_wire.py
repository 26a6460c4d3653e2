import io

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, proxies_of, serve
from flwr.common import (
    EvaluateIns,
    FitIns,
    FitRes,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

import flower_fedclust as fc
from flower_fedclust.engine import ProtocolError, Sum, client_fn, journal
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.format import FORMAT, FormatError, check_format
from flower_fedclust.outside import parse_json

ROWS = [np.random.default_rng(index).normal(size=(20, 2)) for index in range(3)]

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
    for one, other in zip(
        decode(encode(ARRAYS)), parameters_to_ndarrays(encode(ARRAYS)), strict=True
    ):
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


@pytest.mark.parametrize(
    "tensor", [b"", b"x", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"rubbish" * 30]
)
def test_bytes_that_are_no_array_are_a_value_error(tensor):
    with pytest.raises(ValueError, match=r"\w"):
        decode(Parameters([tensor], "numpy.ndarray"))


def test_truncated_array_is_a_value_error():
    (tensor,) = encode([np.zeros(10)]).tensors
    with pytest.raises(ValueError, match=r"\w"):
        decode(Parameters([tensor[:-3]], "numpy.ndarray"))


def test_json_is_read():
    assert parse_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert parse_json(b"[0.5]") == [0.5]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 500 + "]" * 500,
        "[1",
        "",
        b"\xff",
        "1" * 10_000,
        "[1]" + " " * 50,
    ],
)
def test_json_that_is_wrong_too_long_or_too_deep_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text, 50 if text[:1] == "[" and len(text) < 100 else 10**6)


# Formats: what another version has written is refused in a sentence.


@pytest.mark.parametrize(
    "stated", [None, 0, FORMAT - 1, FORMAT + 1, str(FORMAT), True, 10**400, [FORMAT]]
)
def test_another_format_is_refused_in_a_sentence_that_names_the_remedy(stated):
    check_format(FORMAT, "this message")
    with pytest.raises(
        FormatError, match=r"^this message .* format .*; install the same version of \S+ on both\.$"
    ):
        check_format(stated, "this message", "this site")


def test_every_message_states_its_format_and_a_client_refuses_another():
    proxies = proxies_of(ToyClient, ROWS, ["a", "b", "c"])
    serve(Toy([Sum(ToyClient.moments.asked())]), proxies)
    assert {ins.config["format"] for proxy in proxies for ins in proxy.received} == {FORMAT}
    client = client_fn(ToyClient, lambda context: pytest.fail("rows were loaded"))(
        proxies[0].context
    )
    message = proxies[0].received[1].config | {"format": FORMAT - 1}
    answered = client.fit(FitIns(encode([]), dict(message)))
    assert "reads format" in answered.metrics["failure"]
    assert answered.metrics["format"] == FORMAT
    assert (
        "reads format" in client.evaluate(EvaluateIns(encode([]), dict(message))).metrics["failure"]
    )
    for foreign in ({}, {"client": ToyClient.key()}, {"lr": 0.1}):
        for ask, ins in ((client.fit, FitIns), (client.evaluate, EvaluateIns)):
            with pytest.raises(
                ProtocolError,
                match="answers strategies of flower-fedclust, and this message is not",
            ):
                ask(ins(encode([]), foreign))


def test_a_reply_of_another_format_is_a_failure_and_not_used():
    def older(res):
        return FitRes(
            res.status, res.parameters, res.num_examples, res.metrics | {"format": FORMAT - 1}
        )

    proxies = proxies_of(ToyClient, ROWS, ["a", "b", "c"])
    proxies[1].misbehave = {2: older}
    strategy = serve(Toy([Sum(ToyClient.moments.asked())]), proxies)
    assert strategy.outcome.model.brought[0].n_clients == 2
    (failure,) = strategy.failures
    assert failure.client == "b"
    assert "this server reads format" in failure.reason


def test_a_journal_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(journal, "FORMAT", FORMAT - 1)
        fc.simulate(fc.KFED(2), ROWS, seed=0, journal=tmp_path)
    with pytest.raises(ProtocolError, match="format"):
        fc.simulate(fc.KFED(2), ROWS, seed=0, journal=tmp_path)
