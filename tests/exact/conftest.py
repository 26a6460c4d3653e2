"""What the tests of exact arithmetic share."""

from same_bits import assert_same_bits  # noqa: F401  a fixture
