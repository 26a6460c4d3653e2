"""What flower-fedclust's strategies are compared with: forms as printed in papers, and other baselines."""
