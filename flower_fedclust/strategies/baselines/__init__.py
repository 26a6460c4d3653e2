"""The baselines of the papers, written in the same form as the strategies."""
