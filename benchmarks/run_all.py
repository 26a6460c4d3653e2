"""Run every benchmark, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = [
    *(["speed.py", case] for case in ("record", "client", "client-5000", "lloyd", "ray")),
    ["accuracy.py", "record"],
    ["accuracy.py", "client"],
    *(["fedsc.py", case] for case in ("accuracy", "noise", "factors", "epsilon", "attack")),
    ["fedsc_server.py", "ours"],
    *(["fedc.py", case] for case in ("theorem", "speed")),
    ["fgc.py", "server"],
]

for script, *arguments in RUNS:
    print(f"\n$ python benchmarks/{script} {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)
