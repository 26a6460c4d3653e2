"""Audit every strategy of the registry in every way in which it can be private; write the table of the docs.

``python benchmarks/audits.py``           audits them all; ends with 1 if a promise is broken
``python benchmarks/audits.py --write``   writes docs/audited.md as well
``python benchmarks/audits.py --seeds 16``  makes small audits of them all, with tables of their own for each seed, and
counts how many sound strategies are called broken; ``--first`` is for doing that in parts
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from flower_fedclust.auditing.statistics import FALSE_ALARM
from flower_fedclust.lab.audits import audit_every, table_of

#: Of small audits: how often the noise is drawn, and for how long.
SMALL = 60, 1.0

PAGE = Path(__file__).resolve().parents[1] / "docs" / "audited.md"

BEGINNING = """# What did audits of this version find?

Every strategy that can be private, for every place of the noise and every unit of privacy, on small made-up tables
({runs} runs or {seconds:g} seconds each). Written by `python benchmarks/audits.py --write`; what the columns mean is on
[the page on audits](audit.md).

- *promised*: the epsilon that was asked for, at delta 1e-6; *counted*: what the audit composes the releases to.
- *these neighbours*: what the worst neighbours that were found lose through the declared noise. Near *promised* means
  that the audit has tried what the guarantee is about.
- *at least*: the lower bound on epsilon from what was drawn. So few runs show little of an epsilon of 1.
- *moved*: the largest realised over declared sensitivity, of all releases.

"""


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="how often the noise is drawn")
    parser.add_argument("--seconds", type=float, default=10.0, help="for one strategy, about")
    parser.add_argument("--seeds", type=int, metavar="N", help="small audits, with N seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--write", action="store_true", help="write the table of the docs")
    args = parser.parse_args()
    if args.seeds:
        return false_alarms(range(args.first, args.first + args.seeds))
    found = audit_every(args.runs, args.seconds, partial(print, flush=True))
    if args.write:
        PAGE.write_text(BEGINNING.format(runs=args.runs, seconds=args.seconds) + table_of(found), encoding="utf-8")
    n_broken = sum(result.verdict == "broken" for _, _, result in found)
    print(f"{len(found)} audits; {n_broken} found a broken promise.")
    return int(n_broken > 0)


def false_alarms(seeds: range) -> int:
    """Make small audits with each seed; say how many promises were called broken, and return 1 if too many were."""
    verdicts: Counter[str] = Counter()
    start = time.process_time()
    for seed in seeds:
        for name, parameters, result in audit_every(*SMALL, lambda _: None, seed=seed, false_alarm=FALSE_ALARM):
            verdicts[result.verdict] += 1
            if result.verdict == "broken":
                print(f"seed {seed}, {name} {parameters}: {result.broken}", flush=True)
        print(f"seed {seed}: {dict(verdicts)}, {time.process_time() - start:.0f} s of CPU so far", flush=True)
    n_audits = verdicts.total() - verdicts["no guarantee"]
    print(f"{n_audits} audits of sound strategies; {verdicts['broken']} were called broken.")
    return int(verdicts["broken"] > max(4, 4 * n_audits // 1000))


if __name__ == "__main__":
    sys.exit(main())
