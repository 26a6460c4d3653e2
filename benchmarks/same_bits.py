"""Whether clients answer with the same bits on other processors, in rounds whose answers carry noise.

    python benchmarks/same_bits.py

Each strategy with noise runs once. Processes that use OpenBLAS' kernels for other processors, and NumPy without some of
this processor's instructions, then answer one client's messages again. Answers to rounds with a release are compared.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

from flower_fedclust.checking import Subject
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import decode

KERNELS = ("SkylakeX", "Haswell", "Zen", "Prescott")
FEATURES = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"


def recorded() -> list[Any]:
    """Return the messages to one client of every strategy, and which of its answers carry noise."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "strategies"))
    from test_strategies_every import cases

    found = []
    for case, strategy in cases().items():
        if (
            strategy.epsilon is None
            or strategy.noise != "server"
            or not (subject := Subject(strategy)).releases
        ):
            continue
        name, noisy = subject.names[0], {number for number, _, _ in subject.releases}
        messages = [
            (one.ins.parameters, dict(one.ins.config), one.round in noisy)
            for one in subject.run.exchanges
            if one.client == name
        ]
        found.append(
            (case, subject.run.strategy.client_type, name, subject.data[name].rows, messages)
        )
    return found


def answered(path: str) -> None:
    """Answer the messages in a file, and print a hash of the answers for each strategy."""
    for case, client_type, name, rows, messages in pickle.loads(Path(path).read_bytes()):
        context, data = Context(0, 0, UserConfig(), RecordDict(), UserConfig()), ClientData(rows)
        digest = hashlib.sha256()
        for parameters, config, noisy in messages:
            client = client_type(data, name=name, context=context, noise_seed=0)
            asked = {key: value for key, value in config.items() if key != "releases"}
            arrays, _, _ = client.fit(decode(parameters), asked)
            if noisy:
                digest.update(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        print(f"{case.replace(' ', '/')} {digest.hexdigest()[:16]}")


def main() -> None:
    """Print the strategies whose answers differ, for each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "messages")
        path.write_bytes(pickle.dumps(recorded()))
        first: list[str] = []
        for kernel in KERNELS:
            others = {"OPENBLAS_CORETYPE": kernel}
            if kernel == "Prescott":
                others["NPY_DISABLE_CPU_FEATURES"] = FEATURES
            command = [sys.executable, __file__, str(path)]
            run = subprocess.run(
                command, env=os.environ | others, capture_output=True, text=True, check=True
            )
            lines = run.stdout.splitlines()
            first = first or lines
            different = [
                one.partition(" ")[0]
                for one, other in zip(lines, first, strict=True)
                if one != other
            ]
            print(
                f"{kernel}: {len(lines)} strategies, {len(different)} differ {' '.join(different)}"
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    answered(sys.argv[1]) if len(sys.argv) > 1 else main()
