"""The doubts of every strategy on a table of six groups at epsilon 1, where several strategies find nothing.

    python benchmarks/collapse.py [STRATEGY ...]

tests/harness/unequal.py makes the table. With all rows in one cluster, accuracy is .745 and NMI is 0.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from common import header

import flower_fedclust as fc
from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.registry import accepted_parameters, strategies

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from unequal import N_CLUSTERS, unequal_classes

WITHOUT_EPSILON = ("spp-fgc", "spp-fgc-printed", "spp-fgc-plus")


def main() -> None:
    print(header())
    warnings.simplefilter("ignore", RuntimeWarning)  # empty clusters; the doubts should report them
    parts = [
        part[["first", "second", "third"]].to_numpy()
        for _, part in unequal_classes().groupby("site")
    ]
    public = np.random.default_rng(1).normal(size=(120, 3))
    print("| strategy | epsilon asked | rows in the largest cluster | doubts |\n|---|--:|--:|---|")
    for name in sys.argv[1:] or strategies():
        given = {"epsilon": 1.0, "max_norm": 60.0, "max_l1_norm": 100.0}
        given |= {"epsilon": None} if name in WITHOUT_EPSILON else {}
        chosen = {key: value for key, value in given.items() if key in accepted_parameters(name)}
        rows = public if needs_server_rows([name]) else None
        (strategy,) = make_strategies([name], {"n_clusters": N_CLUSTERS, **chosen}, rows)
        result = fc.simulate(strategy, parts, seed=0, progress=False)
        codes = ", ".join(doubt.code for doubt in result.doubts) or "none"
        largest = 100 * result.metrics["largest_cluster"]
        print(
            f"| `{name}` | {chosen.get('epsilon') or '-'} | {largest:.1f}% | {codes} |", flush=True
        )


if __name__ == "__main__":
    main()
