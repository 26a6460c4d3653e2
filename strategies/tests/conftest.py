"""What the tests of the second distribution share with the tests of the core, which lie beside this folder's parent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "tests"
#: Folders of tests that these tests import from.
FOLDERS = ("results", ".", "cli", "engine", "exact", "site", "strategies", "strategies/dp_fedc")
FOLDERS += ("strategies/fedsc", "strategies/spp_fgc", "strategies/maps", "numerics")
sys.path += [str(TESTS / folder) for folder in FOLDERS]
os.environ.setdefault("FEDCLUST_TESTED", "papers")

from tested import PAPERS  # noqa: E402

if not PAPERS:
    raise pytest.UsageError(
        "run the tests in strategies/ by themselves, or with FEDCLUST_TESTED=papers."
    )

from same_bits import assert_same_bits  # noqa: E402, F401  a fixture
from test_engine_hostile_clients import data  # noqa: E402, F401  a fixture
from test_site_hostile_servers import careful  # noqa: E402, F401  a fixture
