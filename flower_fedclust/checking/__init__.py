"""Checks of strategies: ``check_strategy`` for authors, and ``audit``, a longer test of the promises of privacy.

``suite`` holds the checks, and ``audit`` the audit. Both rest on the other modules of this package:

- ``runs`` makes a run that keeps every message, and lets a client answer the messages again;
- ``neighbors`` measures how far one row, person or client moves a release;
- ``by_row`` checks that a row's contribution depends on that row alone;
- ``noise`` tests the law and the source of the noise, and measures the privacy loss;
- ``stand_ins`` tests the noise on large made-up arrays;
- ``books`` looks at everything else that leaves, and at what the privacy report says.

None of them trusts the accountant or the declarations of the strategy: what they can compute
themselves, they do.
"""

from flower_fedclust.checking.audit import AuditedRelease as AuditedRelease
from flower_fedclust.checking.audit import AuditResult as AuditResult
from flower_fedclust.checking.audit import audit as audit
from flower_fedclust.checking.neighbors import Change as Change
from flower_fedclust.checking.neighbors import Neighbors as Neighbors
from flower_fedclust.checking.neighbors import extreme_rows as extreme_rows
from flower_fedclust.checking.neighbors import far_rows as far_rows
from flower_fedclust.checking.neighbors import how_far as how_far
from flower_fedclust.checking.neighbors import neighbor_tables as neighbor_tables
from flower_fedclust.checking.neighbors import tied_neighbors as tied_neighbors
from flower_fedclust.checking.runs import Exchange as Exchange
from flower_fedclust.checking.runs import LocalGrid as LocalGrid
from flower_fedclust.checking.runs import Subject as Subject
from flower_fedclust.checking.runs import WatchedRun as WatchedRun
from flower_fedclust.checking.runs import WatchedSite as WatchedSite
from flower_fedclust.checking.runs import shadow_answers as shadow_answers
from flower_fedclust.checking.runs import small_tables as small_tables
from flower_fedclust.checking.runs import watched_run as watched_run
from flower_fedclust.checking.suite import Check as Check
from flower_fedclust.checking.suite import check_strategy as check_strategy
from flower_fedclust.checking.suite import strategy_checks as strategy_checks
