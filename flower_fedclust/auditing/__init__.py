"""Audits of strategies, from outside.

``audit``  the audit; ``result`` is what it finds
``draws``  noise as a run draws it, again and again
``statistics``  what drawn noise says, and the privacy loss
``counting``  epsilon, counted again
``coverage``  what leaves beside the releases
"""

from flower_fedclust.auditing.audit import audit
from flower_fedclust.auditing.result import AuditedRelease, AuditResult
from flower_fedclust.auditing.statistics import Loss, NoiseTest

__all__ = ["AuditResult", "AuditedRelease", "Loss", "NoiseTest", "audit"]
