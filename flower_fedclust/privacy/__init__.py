"""Mechanisms, accounting and reports. Knows nothing of Flower."""
