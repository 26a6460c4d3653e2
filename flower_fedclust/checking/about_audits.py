"""A small audit, as a check."""

# ruff: noqa: D401 - the docstrings are promises, not orders

from __future__ import annotations

from flower_fedclust.checking.audit import audit_subject
from flower_fedclust.checking.check import check, require
from flower_fedclust.checking.subject import Subject

#: The noise is drawn so often, and what is compared ends after so many seconds.
RUNS, SECONDS = 40, 0.5

#: How rarely a sound strategy may fail: suites run every day.
FALSE_ALARM = 1e-9


@check
def a_small_audit_finds_nothing(subject: Subject) -> None:
    """An audit from outside, of some seconds at most, finds no promise broken; ``fedclust audit`` makes a large one."""
    if not subject.releases:
        return
    found = audit_subject(subject, runs=RUNS, seconds=SECONDS, false_alarm=FALSE_ALARM)
    require(not found.broken, found.sentence)
