"""FedSC (Qiao, Ding and Fan, NeurIPS 2023) and its variant by sums alone."""
