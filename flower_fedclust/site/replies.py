"""What a site keeps of a run: its answers as bytes, and what the client remembers from round to round."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status

from flower_fedclust.site.ledger import make_private, write_private

#: Under which keys a client remembers things in its Context; see ``ProtocolClient.remember``.
REMEMBERED = "fedclust."


class RunFolder:
    """The folder of one run at a site.

    Parameters
    ----------
    parent : Path
        The folder of all runs.
    run : str
        The name of the run, which may come from anybody.
    """

    def __init__(self, parent: Path, run: str) -> None:
        self.path = parent / hashlib.sha256(run.encode()).hexdigest()[:20]
        self._known: dict[str, int] = {}

    # Answers.

    def keep(self, name: str, answer: bytes) -> None:
        """Write an answer, and return when it is on the disk. Whether it is whole, the hash in the ledger tells."""
        make_private(self.path)
        write_private(self.path / f"{name}.answer", answer)

    def kept(self, name: str) -> bytes | None:
        """Return an answer as it was sent, or None."""
        path = self.path / f"{name}.answer"
        return path.read_bytes() if path.exists() else None

    # The client's memory.

    def restore(self, context: Context) -> None:
        """Put into a Context what the client remembered of this run, and nothing that it did of another."""
        for key in [key for key in context.state if key.startswith(REMEMBERED)]:
            del context.state[key]
        path = self.path / "memory.npz"
        if path.exists():
            found: dict[str, list[Any]] = {}
            with np.load(path) as stored:
                for name in stored.files:
                    key, _, _ = name.rpartition(".")
                    found.setdefault(key, []).append(stored[name])
            for key, arrays in found.items():
                context.state[key] = ArrayRecord(arrays)
        self._known = _identities(context)

    def remember(self, context: Context) -> None:
        """Write what the client remembers, if it remembers something else than before."""
        if _identities(context) == self._known:
            return
        arrays = {
            f"{key}.{index:04d}": array
            for key, record in context.state.items()
            if key.startswith(REMEMBERED) and isinstance(record, ArrayRecord)
            for index, array in enumerate(record.to_numpy_ndarrays())
        }
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        make_private(self.path)
        beside = self.path / "memory.part"
        write_private(beside, stream.getvalue())
        beside.replace(self.path / "memory.npz")
        self._known = _identities(context)


def _identities(context: Context) -> dict[str, int]:
    return {key: id(record) for key, record in context.state.items() if key.startswith(REMEMBERED)}


def forget_old_runs(parent: Path, keep_days: int) -> None:
    """Remove what is kept of runs in which nothing was answered for so many days. The ledger stays."""
    if not parent.exists():
        return
    oldest = time.time() - keep_days * 86400
    for folder in parent.iterdir():
        if folder.is_dir() and all(file.stat().st_mtime < oldest for file in [folder, *folder.iterdir()]):
            shutil.rmtree(folder)


def answer_to_bytes(answer: FitRes | EvaluateRes) -> bytes:
    """Return an answer as bytes, from which :func:`fit_answer` and :func:`evaluate_answer` make the same again."""
    tensors = answer.parameters.tensors if isinstance(answer, FitRes) else []
    about: dict[str, Any] = {
        "num_examples": answer.num_examples,
        "metrics": dict(answer.metrics),
        "sizes": [len(tensor) for tensor in tensors],
    }
    if isinstance(answer, EvaluateRes):
        about["loss"] = answer.loss
    return b"".join([json.dumps(about).encode(), b"\n", *tensors])


def fit_answer(content: bytes) -> FitRes:
    """Undo :func:`answer_to_bytes`."""
    about, rest = _split(content)
    tensors = []
    for size in about["sizes"]:
        tensors.append(rest[:size])
        rest = rest[size:]
    return fit_res(tensors, about["metrics"], about["num_examples"])


def evaluate_answer(content: bytes) -> EvaluateRes:
    """Undo :func:`answer_to_bytes`."""
    about, _ = _split(content)
    return evaluate_res(about["loss"], about["num_examples"], about["metrics"])


def fit_res(tensors: list[bytes], metrics: Mapping[str, Any], num_examples: int = 1) -> FitRes:
    """Return Flower's answer to a round."""
    return FitRes(Status(Code.OK, ""), Parameters(tensors, "numpy.ndarray"), num_examples, dict(metrics))


def evaluate_res(loss: float, num_examples: int, metrics: Mapping[str, Any]) -> EvaluateRes:
    """Return Flower's answer to a request to evaluate a model."""
    return EvaluateRes(Status(Code.OK, ""), loss, num_examples, dict(metrics))


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    head, _, rest = content.partition(b"\n")
    return json.loads(head), rest
