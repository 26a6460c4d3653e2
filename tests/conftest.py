"""What holds for all tests."""

import os

import compiled

compiled.keep()

# As OMP_NUM_THREADS: threads that wait for each other, while other tests run beside them, take longer than one.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
