"""Audits of strategies: the name under which they are looked for.

An audit runs strategies, so that its code is above them, in :mod:`flower_fedclust.auditing`. Nothing in ``privacy``
imports this module.
"""

from flower_fedclust.auditing import AuditedRelease, AuditResult, audit

__all__ = ["AuditResult", "AuditedRelease", "audit"]
