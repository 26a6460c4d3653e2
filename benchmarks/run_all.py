"""Run every benchmark but the longest, each in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = [
    *(
        ["speed.py", case]
        for case in ("record", "client", "client-5000", "dp-fedc", "lloyd", "ray")
    ),
    ["server.py", "fedsc"],
    ["server.py", "scaling", "spp-fgc", "spp-fgc-moons"],
    ["noise.py"],
    ["growth.py", "every", "--limit", "60"],
    ["growth.py", "scale"],
    *(["shards.py", case] for case in ("calls", "empty", "lost")),
]

for script, *arguments in RUNS:
    print(f"\n$ python benchmarks/{script} {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)
