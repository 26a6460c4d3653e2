"""Runs strategies side by side, and shows their results."""
