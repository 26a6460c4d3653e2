"""Whose strategies the suites over the registry take: the package's own, or those of the second distribution.

By default the second distribution counts as not installed, so that the tests show the core alone. With the environment
variable FEDCLUST_TESTED=papers the suites take the strategies of the second distribution instead.
"""

from __future__ import annotations

import os

from flower_fedclust import plugins, registry
from flower_fedclust.engine import Entry

PAPERS = os.environ.get("FEDCLUST_TESTED", "core") == "papers"


def without_the_papers(**selected: str) -> list[plugins.EntryPoint]:
    """Return the entry points of all installed packages but the second distribution."""
    return [
        point
        for point in _entry_points(**selected)
        if point.dist is None or point.dist.name != plugins.PAPERS
    ]


_entry_points = plugins.entry_points
if not PAPERS:
    plugins.entry_points = without_the_papers


def entries() -> dict[str, Entry]:
    """Return the strategies that the suites take, by name."""
    ours = {name for _, *names in registry.CLASSES.values() for name in names}
    return {
        name: entry for name, entry in registry.strategies().items() if (name in ours) != PAPERS
    }
