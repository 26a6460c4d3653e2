"""A fixture that runs a program with other kernels and compares the bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# Hashes the arrays of `found`, whose zeros may carry either sign.
DIGEST = """
import hashlib
digest = hashlib.sha256()
for array in found:
    array = np.asarray(array) + 0
    digest.update(array.astype("<f8" if array.dtype.kind == "f" else "<i8").tobytes())
print(digest.hexdigest())
"""


@pytest.fixture
def assert_same_bits(tmp_path):
    """Run a program that makes arrays from given ones with other BLAS kernels and another dispatch of NumPy."""

    def check(program, **given):
        # The given arrays are made here, because their norms are not the same on every machine.
        np.savez(tmp_path / "given.npz", **given)
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        without = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}
        kernels = [{}, without | {"OPENBLAS_CORETYPE": "Prescott"}]
        if "avx2" in flags:
            kernels += [{"OPENBLAS_CORETYPE": kernel} for kernel in ("Haswell", "Zen")]
        if "avx512" in flags:
            kernels += [{"OPENBLAS_CORETYPE": "SkylakeX"}]
        child = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            program + DIGEST,
            str(tmp_path / "given.npz"),
        ]
        hashes = {}
        for kernel in kernels:
            done = subprocess.run(
                child, env=os.environ | kernel, capture_output=True, text=True, check=True
            )
            hashes[json.dumps(kernel)] = done.stdout
        assert len(set(hashes.values())) == 1, hashes

    return check
