"""Fed-tSNE, Fed-UMAP and Fed-SpeClust (Qiao, Ma and Fan, AAAI 2025), and their forms of sums alone."""
