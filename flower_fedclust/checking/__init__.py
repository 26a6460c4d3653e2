"""Checks of strategies: ``check_strategy`` for their authors, and ``audit``, the same promises tried for longer.

``suite``       the checks, which are in ``about_parameters``, ``about_runs``, ``about_failures``, ``about_privacy`` and
                ``about_audits``
``audit``       the audit; ``result`` is what it finds
``draws``       noise as a run draws it, again and again
``statistics``  what drawn noise says, and the privacy loss
``counting``    epsilon, counted again
``coverage``    what leaves beside the releases
``runs``        a run whose wire is watched
``subject``     a strategy, and small tables to try it on
``neighbours``  how far one record, or one client, moves what is released
"""

from flower_fedclust.checking.audit import audit
from flower_fedclust.checking.check import Check
from flower_fedclust.checking.neighbours import Moved, Neighbours, how_far, neighbours, shadow_answers
from flower_fedclust.checking.result import AuditedRelease, AuditResult
from flower_fedclust.checking.runs import Exchange, Run, Site, watched_run
from flower_fedclust.checking.statistics import Loss, NoiseTest
from flower_fedclust.checking.subject import Subject
from flower_fedclust.checking.suite import check_strategy, strategy_checks

__all__ = [
    "AuditResult",
    "AuditedRelease",
    "Check",
    "Exchange",
    "Loss",
    "Moved",
    "Neighbours",
    "NoiseTest",
    "Run",
    "Site",
    "Subject",
    "audit",
    "check_strategy",
    "how_far",
    "neighbours",
    "shadow_answers",
    "strategy_checks",
    "watched_run",
]
