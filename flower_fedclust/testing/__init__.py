"""Tests for strategies of your own: ``check_strategy``, its checks one by one, and the runs that they watch.

``suite``  the checks, which are in ``about_parameters``, ``about_runs``, ``about_failures``, ``about_privacy`` and
           ``about_audits``
"""

from flower_fedclust.testing.checks import Check
from flower_fedclust.testing.suite import check_strategy, strategy_checks
from flower_fedclust.watching.neighbours import Moved, Neighbours, how_far, neighbours, shadow_answers
from flower_fedclust.watching.runs import Exchange, Run, Site, watched_run
from flower_fedclust.watching.subject import Subject

__all__ = [
    "Check",
    "Exchange",
    "Moved",
    "Neighbours",
    "Run",
    "Site",
    "Subject",
    "check_strategy",
    "how_far",
    "neighbours",
    "shadow_answers",
    "strategy_checks",
    "watched_run",
]
