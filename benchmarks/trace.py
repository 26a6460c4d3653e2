"""How much code a run passes through: functions, files and depth, of one round and of a whole run.

    python benchmarks/trace.py
    python benchmarks/trace.py -v   # also every function of a round, in the order of first calls

Whoever wants to understand a run has to read what it passes. Counted are functions of this package that have a name:
no comprehension, no lambda, nothing of Flower or NumPy. One round begins when the protocol has yielded it and ends when
the protocol gets what it brought; of all rounds of a run the largest counts. Depth is how many frames of the package
stand on the stack, the protocol's caller included. Everything is measured warm, inline, with three clients.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import flower_fedclust as fc

ROOT = str(Path(fc.__file__).resolve().parent) + "/"

#: Functions whose calls are counted, because it was once a hundred times what a run needs.
COUNTED = ("parts", "gaussian_part", "Release.__post_init__", "Round.question_for")


@dataclass
class Trace:
    """What was called while a trace was on."""

    functions: set[tuple[str, str]] = field(default_factory=set)  #: File and name.
    calls: Counter[str] = field(default_factory=Counter)
    #: Depth, file and name of each function at its first call: the round as a reader meets it.
    order: list[tuple[int, str, str]] = field(default_factory=list)
    depth: int = 0
    deepest: list[str] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        """The files that the functions are in."""
        return {file for file, _ in self.functions}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Take one event of the interpreter."""
        if event != "call" or not is_named(frame.f_code):
            return
        code = frame.f_code
        function = code.co_filename.removeprefix(ROOT), code.co_qualname
        self.calls[code.co_qualname] += 1
        stack: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            if is_named(at.f_code):
                stack.append(at.f_code.co_qualname)
            at = at.f_back
        if function not in self.functions:
            self.functions.add(function)
            self.order.append((len(stack), *function))
        if len(stack) > self.depth:
            self.depth, self.deepest = len(stack), stack[::-1]

    def __str__(self) -> str:
        return f"{len(self.functions)} functions, {len(self.files)} files, depth {self.depth}"


def is_named(code: CodeType) -> bool:
    """Return whether code is a function of this package that a reader has to look up."""
    return code.co_filename.startswith(ROOT) and not code.co_name.startswith("<")


def traced(work: Callable[[], Any]) -> Trace:
    """Return what a piece of work calls."""
    found = Trace()
    sys.setprofile(found.see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def with_traced_rounds(kind: type[Any], rounds: list[Trace]) -> type[Any]:
    """Return a strategy class that traces each of its rounds."""

    def protocol(self: Any) -> Any:
        inner, received = kind.protocol(self), None
        while True:
            try:
                round_ = inner.send(received)
            except StopIteration as stop:
                return stop.value
            rounds.append(Trace())
            sys.setprofile(rounds[-1].see)
            try:
                received = yield round_
            finally:
                sys.setprofile(None)

    return type(
        kind.__name__,
        (kind,),
        {"protocol": protocol, "__module__": kind.__module__, "entries": kind.entries},
    )


def blobs() -> dict[str, Any]:
    """Return the rows of three clients."""
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0.0, 0.0], [3.0, 3.0, 0.0], [0.0, 3.0, 3.0]])
    return {
        f"c{index}": np.concatenate([rng.normal(mean, 0.3, (60, 3)) for mean in means])
        for index in range(3)
    }


def main() -> None:
    """Print the figures of a strategy without noise and of one with noise."""
    rows = blobs()
    for kind, options in ((fc.KFED, {}), (fc.PrivateKMeans, {"epsilon": 1.0, "max_norm": 10.0})):
        fc.simulate(kind(3, **options), rows, seed=0)  # imports and caches
        whole = traced(
            lambda kind=kind, options=options: fc.simulate(kind(3, **options), rows, seed=0)
        )
        rounds: list[Trace] = []
        fc.simulate(with_traced_rounds(kind, rounds)(3, **options), rows, seed=0)
        largest = max(rounds, key=lambda one: len(one.functions))
        files, depth = max(len(one.files) for one in rounds), max(one.depth for one in rounds)
        print(f"{kind.__name__}(3), {len(rounds)} rounds")
        print(f"  one round: {len(largest.functions)} functions, {files} files, depth {depth}")
        places = Counter(file.split("/")[0] for file, _ in largest.functions)
        print("    in " + ", ".join(f"{place} {count}" for place, count in places.most_common()))
        print(f"  whole run: {whole}")
        calls = (
            (name, sum(n for one, n in whole.calls.items() if f".{one}".endswith(f".{name}")))
            for name in COUNTED
        )
        print("  calls: " + ", ".join(f"{name} {count}" for name, count in calls))
        if "-v" in sys.argv:
            print("  deepest: " + " > ".join(max(rounds, key=lambda one: one.depth).deepest))
            for depth, file, name in largest.order:
                print(f"    {'  ' * depth}{name}  ({file})")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
