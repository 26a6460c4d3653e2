"""Tests for strategies of your own: ``check_strategy``, its checks one by one, and what they are made of.

``suite``  the checks, which are in ``about_parameters``, ``about_runs``, ``about_failures``, ``about_privacy`` and
           ``about_audits``
``runs``  a run whose wire is watched
``neighbours``  how far one record, or one client, moves what is released
"""

from flower_fedclust.testing.checks import Check
from flower_fedclust.testing.neighbours import Moved, Neighbours, how_far, neighbours, shadow_answers
from flower_fedclust.testing.runs import Exchange, Run, Site, watched_run
from flower_fedclust.testing.subject import Subject
from flower_fedclust.testing.suite import check_strategy, strategy_checks

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
