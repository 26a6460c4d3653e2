"""What others may cost a site: size, number and work of messages, judged by their sizes and never by the rows.

How long an answer takes, or how much memory, would tell something about the rows. So a message is refused by its
content and by bounds that the operator has made public. The system's limits for the process of a message are far
higher.
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

#: Largest lengths, in characters: of a name (run, study, task, client half, text argument); of all texts of a message
#: together (schema, plan and so on); of anything others said in a log, a ledger or a table.
LONGEST_NAME, LONGEST_TEXT, LONGEST_SAID = 200, 2**20, 500

#: The largest power of two that may be asked for: no float has a larger one.
LARGEST_EXPONENT = 1100

#: Each entry of an array counts as 8 bytes, whatever its type: it may become a float64.
ENTRY = 8

MEGABYTE = 10**6
DAY = 86400


def check_names(**names: str) -> None:
    """Raise Refused unless names of a message, which will be in the ledger, are short and print as one line."""
    for what, name in names.items():
        if len(name) > LONGEST_NAME:
            raise Refused(f"the {what} has a name of {len(name)} characters; {LONGEST_NAME} is the most.")
        if not name.isprintable():
            raise Refused(f"the {what} has a name with characters that do not print.")


def check_message(limits: Limits, config: Mapping[str, Any], tensors: Sequence[bytes]) -> None:
    """Raise Refused if a message is too large, or asks for too much work.

    Work is rows times entries times steps: the most rows that the site may have, the entries of all arrays of the
    message, and the product of the arguments that say how many things are made or how often something is repeated.
    These arguments are called ``n_...``; tests/site/test_site_limits.py checks every task for others.
    """
    texts = sum(len(value) for value in config.values() if isinstance(value, (str, bytes)))
    if texts > LONGEST_TEXT:
        raise Refused(f"the message has texts of {texts} characters; {LONGEST_TEXT} is the most.")
    if size_of_message(config, tensors) > limits.message_mb * MEGABYTE:
        raise Refused(f"the message is larger than message_mb in the limits, {limits.message_mb}.")
    n_entries = 0
    for array in decode(Parameters(list(tensors), "numpy.ndarray")):
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > ENTRY:
            raise Refused(f"the message has an array of {array.dtype.str[:20]}; only plain numbers are read.")
        n_entries += math.prod(max(length, 1) for length in array.shape)
    if ENTRY * n_entries > limits.message_mb * MEGABYTE:
        raise Refused(f"the message has {n_entries} entries, more than message_mb in the limits allows.")
    steps = math.prod(_amounts(config))
    if steps > limits.most_steps:
        raise Refused(f"the message asks for {steps:.3g} steps; most_steps in the limits is {limits.most_steps}.")
    work = limits.most_rows * max(n_entries, 1) * steps
    if work > limits.most_work:
        raise Refused(f"the message asks for work of {work:.3g}; most_work in the limits is {limits.most_work:g}.")


def _amounts(config: Mapping[str, Any]) -> Iterable[float]:
    """Yield the arguments that are amounts; raise Refused if one is no number, or is too large for any purpose."""
    if "view" in config:
        of_view = parse_json(str(config["view"]))
        if not isinstance(of_view, dict):
            raise Refused("the view of the message cannot be read.")
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
                raise Refused(f"'{printable(name)}' is not a usable amount.")
            yield max(abs(value), 1)
        elif isinstance(value, int) and abs(value) > (LARGEST_EXPONENT if is_exponent(name) else 2**63):
            raise Refused(f"'{printable(name)}' is too large.")


def is_amount(name: str) -> bool:
    """Return whether an argument says how many things are made, or how often something is repeated."""
    return name.startswith("n_")


def is_exponent(name: str) -> bool:
    """Return whether an argument is a power of two."""
    return name == "exponent" or name.endswith("_bits")


def size_of_message(config: Mapping[str, Any], tensors: Sequence[bytes]) -> int:
    """Return how many bytes of a message a site may keep."""
    return sum(map(len, tensors)) + sum(len(value) for value in config.values() if isinstance(value, (str, bytes)))


def check_run(limits: Limits, entries: Sequence[Mapping[str, Any]], run: str, keep_days: int) -> None:
    """Raise Refused if a run may not begin, or may not have another answer, given the whole ledger."""
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
    last = {entry["run"]: entry["time"] for entry in entries}  # a run's answers are kept for keep_days after its last
    kept = sum(
        entry.get("n_bytes", 0) + entry.get("n_asked", 0) for entry in entries if last[entry["run"]] >= _ago(keep_days)
    )
    if kept > limits.kept_mb * MEGABYTE:
        raise Refused(f"answers of {kept / MEGABYTE:.0f} MB are kept; kept_mb in the limits is {limits.kept_mb}.")


def _ago(days: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - days * DAY))


def restrict_process(limits: Limits) -> None:
    """Make the system end this process if it exceeds the limits for memory or processor time."""
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


def printable(value: Any) -> Any:
    """Return something that others said as one short line that prints; anything but a text as it is."""
    if not isinstance(value, str):
        return value
    short = value if len(value) <= LONGEST_SAID else f"{value[:LONGEST_SAID]}… ({len(value)} characters)"
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode() for one in short
    )
