"""Mechanisms, accounting and reports. This package does not depend on Flower."""
