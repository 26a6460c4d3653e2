"""Audit every strategy of the registry in each of its private forms.

python benchmarks/audits.py              ends with 1 if a promise is broken
python benchmarks/audits.py --write      also writes the last table of docs/audit.md
python benchmarks/audits.py --seeds 16   counts false alarms of small audits, with other tables for each seed

The time of an audit is processor time, so a busy machine finds as much.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

from flower_fedclust.checking import AuditResult
from flower_fedclust.checking.noise import FALSE_ALARM
from flower_fedclust.cli.advice import BOUNDS, audit_by_name
from flower_fedclust.engine import ProtocolStrategy
from flower_fedclust.engine.parameters import _declared
from flower_fedclust.plugins import OF_PAPERS
from flower_fedclust.registry import accepted_parameters, strategies

#: Draws of the noise and seconds of an audit, as in tests/checking/audit_faults.py.
RUNS, SECONDS = 400, 4.0

#: Draws of the noise and seconds of a small audit.
SMALL = 150, 1.0

#: Parameters that make a run short.
SHORT = {
    "n_rounds": 3,
    "n_lloyd_rounds": 2,
    "n_local_steps": 2,
    "n_membership_steps": 2,
    "n_average_rounds": 1,
    "n_landmarks": 6,
    "n_atoms": 6,
    "n_prototypes": 6,
    "coreset_size": 6,
    "perplexity": 5.0,
    "n_neighbors": 5,
}


PAGE = Path(__file__).resolve().parents[1] / "docs" / "audit.md"
HEADING = "## What did audits of this version find?"

BEGINNING = """

Each strategy that can be private was audited with each place of the noise and each unit of privacy, on small made-up
tables, at epsilon 1 and delta 1e-6 ({runs} runs or {seconds:g} seconds each). `python
benchmarks/audits.py --write` writes this table. So few runs show lower bounds on epsilon of {bounds}.

- *counted*: the epsilon that the audit computes from all releases of the run.
- *worst neighbors*: the epsilon of the worst neighbors found, given the declared noise (the least and the largest of
  all audits of the strategy). Near *counted*, the audit has tried the case that the guarantee is about.
- *moved*: the largest change between neighbors, divided by the declared sensitivity. It must not exceed 1.
- "No guarantee": the strategy's report makes no promise.

Strategies with \\* are in the package flower-fedclust-papers, in `strategies/` of the repository.

"""


def every_private_strategy() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and short parameters of each private form of each strategy."""
    for name, entry in strategies().items():
        cls, accepted = entry.strategy, accepted_parameters(name)
        if "epsilon" not in cls.parameter_names() and "epsilon" not in entry.fixed:
            continue
        options = {key: value for key, value in SHORT.items() if key in accepted} | dict(
            entry.example
        )
        options |= {
            key: value
            for key, value in BOUNDS.items()
            if key in accepted and options.get(key) is None
        }
        if "epsilon" in accepted:
            options.setdefault("epsilon", 1.0)
        hints = {key: hint for key, hint in _choices(cls).items() if key in accepted}
        for place in hints.get("noise", (None,)):
            for unit in hints.get("privacy_unit", (None,)):
                chosen = {"noise": place, "privacy_unit": unit}
                yield (
                    name,
                    options | {key: value for key, value in chosen.items() if value is not None},
                )


def _choices(cls: type[ProtocolStrategy]) -> dict[str, tuple[Any, ...]]:
    return {
        name: get_args(hint)
        for name, hint, _ in _declared(cls)
        if name in ("noise", "privacy_unit")
    }


def audit_every(
    runs: int,
    seconds: float,
    say: Callable[[str], None],
    *,
    seed: int | None = None,
    false_alarm: float = 1e-6,
) -> list[tuple[str, dict[str, Any], AuditResult]]:
    """Audit every private form of every strategy; the seed is for tables and random choices."""
    found = []
    for name, parameters in every_private_strategy():
        given = {"n_clusters": 3, **parameters, "random_state": seed}
        with suppress(ValueError):  # this class does not support this unit or place of noise
            start = time.process_time()
            result = audit_by_name(
                name,
                given,
                4,
                runs=runs,
                seconds=seconds,
                seed=seed,
                false_alarm=false_alarm,
                show=False,
            )
            found.append((name, parameters, result))
            used = time.process_time() - start
            say(f"{used:6.1f} s of CPU  {name} ({result.noise}, {result.unit}): {result.sentence}")
    return found


def table_of(audits: list[tuple[str, dict[str, Any], AuditResult]]) -> str:
    """Return the verdicts as a table in Markdown, with a row for each strategy and verdict."""
    lines = [
        "| strategy | noise by | per | counted | worst neighbors | moved | verdict |",
        "|---|---|---|---|---|--:|---|",
    ]
    groups: dict[tuple[str, str], list[AuditResult]] = {}
    for name, _, result in audits:
        covers = (
            f", except {len(result.unprotected)} kinds of message"
            if result.loss and result.unprotected
            else ""
        )
        groups.setdefault((name, f"{result.verdict}{covers}"), []).append(result)
    for (name, verdict), results in groups.items():
        beside = " \\*" if any(name in names for names in OF_PAPERS.values()) else ""
        moved = max((release.moved for one in results for release in one.releases), default=0.0)
        expected = [one.loss.expected for one in results if one.loss is not None]
        lines.append(
            f"| `{name}`{beside} | {_listed(one.noise for one in results)} | {_listed(one.unit for one in results)} | "
            f"{_range([one.epsilon_counted for one in results])} | {_range(expected)} | {moved:.6f} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _range(values: list[float]) -> str:
    """Return the least and the largest value, or nothing if there are none."""
    ends = (min(values), max(values)) if values else ()
    return " to ".join(dict.fromkeys(f"{value:.3f}" for value in ends))


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="how often the noise is drawn")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one strategy, at most")
    parser.add_argument("--seeds", type=int, metavar="N", help="small audits, with N seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--write", action="store_true", help="write the table of the docs")
    args = parser.parse_args()
    time.perf_counter = time.process_time
    if args.seeds:
        return false_alarms(range(args.first, args.first + args.seeds))
    found = audit_every(args.runs, args.seconds, partial(print, flush=True))
    if args.write:
        largest = max(
            result.loss.epsilon_at_least for _, _, result in found if result.loss is not None
        )
        beginning = BEGINNING.format(
            runs=args.runs, seconds=args.seconds, bounds=f"at most {largest:.3f}"
        )
        before, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
        PAGE.write_text(before + HEADING + beginning + table_of(found), encoding="utf-8")
    n_broken = sum(result.verdict == "broken" for _, _, result in found)
    print(f"{len(found)} audits; {n_broken} found a broken promise.")
    return int(n_broken > 0)


def false_alarms(seeds: range) -> int:
    """Count how many sound strategies small audits call broken; return 1 if there are too many."""
    verdicts: Counter[str] = Counter()
    start = time.process_time()
    for seed in seeds:
        for name, parameters, result in audit_every(
            *SMALL, lambda _: None, seed=seed, false_alarm=FALSE_ALARM
        ):
            verdicts[result.verdict] += 1
            if result.verdict == "broken":
                print(f"seed {seed}, {name} {parameters}: {result.broken}", flush=True)
        print(
            f"seed {seed}: {dict(verdicts)}, {time.process_time() - start:.0f} s of CPU so far",
            flush=True,
        )
    n_audits = verdicts.total() - verdicts["no guarantee"]
    print(f"{n_audits} audits of sound strategies; {verdicts['broken']} were called broken.")
    return int(verdicts["broken"] > max(4, 4 * n_audits // 1000))


if __name__ == "__main__":
    sys.exit(main())
