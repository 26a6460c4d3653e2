"""Checks of strategies: ``check_strategy`` for their authors, and ``audit``, which tries the same promises for longer.

``suite`` has the checks and ``audit`` the audit. Both rest on ``runs`` (a run that keeps every message), ``neighbors``
(how far one row or one client moves a release), ``noise`` (its law, its source, the privacy loss) and ``books`` (what
else leaves, and what the report says).
"""

from flower_fedclust.checking.audit import AuditedRelease, AuditResult, audit
from flower_fedclust.checking.neighbors import (
    Change,
    Neighbors,
    extreme_rows,
    far_rows,
    how_far,
    neighbor_tables,
    tied_neighbors,
)
from flower_fedclust.checking.runs import (
    Exchange,
    LocalGrid,
    Subject,
    WatchedRun,
    WatchedSite,
    shadow_answers,
    small_tables,
    watched_run,
)
from flower_fedclust.checking.suite import Check, check_strategy, strategy_checks

__all__ = [
    "AuditResult",
    "AuditedRelease",
    "Change",
    "Check",
    "Exchange",
    "LocalGrid",
    "Neighbors",
    "Subject",
    "WatchedRun",
    "WatchedSite",
    "audit",
    "check_strategy",
    "extreme_rows",
    "far_rows",
    "how_far",
    "neighbor_tables",
    "shadow_answers",
    "small_tables",
    "strategy_checks",
    "tied_neighbors",
    "watched_run",
]
