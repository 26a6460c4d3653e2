"""Exact arithmetic: rows as integers in a public unit, and sums over batches of rows."""
