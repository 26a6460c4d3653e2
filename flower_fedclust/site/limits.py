"""What others may cost a site: size, number and work of messages, decided by their sizes and never by the rows.

How long an answer took, or how much memory, would tell something of the rows. So a message is refused by what it holds
and by bounds that the operator has made public. What the system grants the process of a message is far above that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.common import Parameters

from flower_fedclust.engine.wire import decode
from flower_fedclust.outside import parse_json
from flower_fedclust.site.policy import Limits, Refused

#: In characters: of a run, a study, a task, a client half; and of a text among the arguments, such as a model's name.
LONGEST_NAME = 200

#: In characters: of the other texts of a message, as a schema or a plan, all together.
LONGEST_TEXT = 2**20

#: In characters: what a log, a ledger or a table has of anything that others said.
LONGEST_SAID = 500

#: What a power of two may be asked for: beyond it no float has one.
LARGEST_EXPONENT = 1100

#: How many bytes an entry of an array counts for: it may be computed with as a float64, whatever it is sent as.
ENTRY = 8

MEGABYTE = 10**6
DAY = 86400


def check_names(**names: str) -> None:
    """Raise Refused unless names of a message are short and print as one line: they stand in the ledger."""
    for what, name in names.items():
        if len(name) > LONGEST_NAME:
            raise Refused(f"the {what} has a name of {len(name)} characters; {LONGEST_NAME} is the most.")
        if not name.isprintable():
            raise Refused(f"the {what} has a name with characters that do not print.")


def check_message(limits: Limits, config: Mapping[str, Any], tensors: Sequence[bytes]) -> None:
    """Raise Refused if a message is too large, or asks for too much work.

    The work is rows times entries times amounts: the most rows that a site may have, the entries of all arrays that it
    is sent, and the product of the arguments that say how many of something are made or how often it is repeated. These
    are the ones that are called ``n_...``; ``tests/site/test_site_limits.py`` looks at every method for others.
    """
    texts = sum(len(value) for value in config.values() if isinstance(value, (str, bytes)))
    if texts > LONGEST_TEXT:
        raise Refused(f"the message has texts of {texts} characters; {LONGEST_TEXT} is the most.")
    n_entries = 0
    if size_of_message(config, tensors) > limits.message_mb * MEGABYTE:
        raise Refused(f"the message is larger than message_mb in the limits, {limits.message_mb}.")
    for array in decode(Parameters(list(tensors), "numpy.ndarray")):
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > ENTRY:
            raise Refused(f"the message has an array of {array.dtype.str[:20]}, which is not one of plain numbers.")
        n_entries += math.prod(max(length, 1) for length in array.shape)
    if ENTRY * n_entries > limits.message_mb * MEGABYTE:
        raise Refused(f"the message has {n_entries} entries, which is more than message_mb in the limits allows for.")
    steps = math.prod(_amounts(config))
    if steps > limits.most_steps:
        raise Refused(f"the message asks for {steps:.3g} steps; most_steps in the limits is {limits.most_steps}.")
    work = limits.most_rows * max(n_entries, 1) * steps
    if work > limits.most_work:
        raise Refused(f"the message asks for work of {work:.3g}; most_work in the limits is {limits.most_work:g}.")


def _amounts(config: Mapping[str, Any]) -> Iterable[float]:
    """Yield the arguments that are amounts; raise Refused if one is no number, or too large for any purpose."""
    if "view" in config:
        of_view = parse_json(str(config["view"]))
        if not isinstance(of_view, dict):
            raise Refused("the view of the message is none.")
        yield from _amounts(of_view)
    arguments = parse_json(str(config.get("arguments", "{}")))
    if not isinstance(arguments, dict):
        raise Refused("the arguments of the message have no names.")
    for name, value in arguments.items():
        if not isinstance(value, (bool, int, float, str)) or len(name) > LONGEST_NAME:
            raise Refused("an argument of the message is neither a number nor a text.")
        if isinstance(value, str):
            check_names(argument=value)
        elif is_amount(name):
            if not abs(value) < 2**63:
                raise Refused(f"'{said(name)}' is no amount.")
            yield max(abs(value), 1)
        elif isinstance(value, int) and abs(value) > (LARGEST_EXPONENT if is_exponent(name) else 2**63):
            raise Refused(f"'{said(name)}' is larger than any that is of use.")


def is_amount(name: str) -> bool:
    """Tell whether an argument says how many of something are made, or how often something is repeated."""
    return name.startswith("n_")


def is_exponent(name: str) -> bool:
    """Tell whether an argument is a power of two."""
    return name == "exponent" or name.endswith("_bits")


def size_of_message(config: Mapping[str, Any], tensors: Sequence[bytes]) -> int:
    """Return how many bytes of a message a site may keep."""
    return sum(map(len, tensors)) + sum(len(value) for value in config.values() if isinstance(value, (str, bytes)))


def check_run(limits: Limits, entries: Sequence[Mapping[str, Any]], run: str, keep_days: int) -> None:
    """Raise Refused if a run may not have another answer, or may not begin: a site keeps something of each.

    Parameters
    ----------
    limits : Limits
    entries : sequence of mapping
        All of the ledger.
    run : str
    keep_days : int
        For how long answers are kept.
    """
    begun: dict[str, str] = {}
    for entry in entries:
        begun.setdefault(entry["run"], entry["time"])
    n_begun = sum(first >= _ago(1) for first in begun.values())
    if run not in begun and n_begun >= limits.runs_per_day:
        raise Refused(f"{n_begun} runs have begun within a day; runs_per_day in the limits is {limits.runs_per_day}.")
    n_answers = sum(entry["run"] == run for entry in entries)
    if n_answers >= limits.answers_per_run:
        raise Refused(
            f"the run has had {n_answers} answers; answers_per_run in the limits is {limits.answers_per_run}."
        )
    last = {entry["run"]: entry["time"] for entry in entries}  # answers go when nothing was answered for so long
    kept = sum(
        entry.get("n_bytes", 0) + entry.get("n_asked", 0) for entry in entries if last[entry["run"]] >= _ago(keep_days)
    )
    if kept > limits.kept_mb * MEGABYTE:
        raise Refused(f"answers of {kept / MEGABYTE:.0f} MB are kept; kept_mb in the limits is {limits.kept_mb}.")


def _ago(days: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - days * DAY))


def restrict_process(limits: Limits) -> None:
    """Have the system end this process if it takes more memory or time of the processor than the limits say."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_mb * MEGABYTE),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def said(value: Any) -> Any:
    """Return something that others said as a log may have it: a text as one line that prints, and not without end."""
    if not isinstance(value, str):
        return value
    short = value if len(value) <= LONGEST_SAID else f"{value[:LONGEST_SAID]}… ({len(value)} characters)"
    return (
        short
        if short.isprintable()
        else "".join(
            one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode() for one in short
        )
    )
