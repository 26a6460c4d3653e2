"""Strategies for comparison with flower-fedclust's own: forms as printed in papers, and other baselines."""
