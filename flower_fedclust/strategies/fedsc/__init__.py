"""FedSC (Qiao, Ding and Fan, NeurIPS 2023), its variant by sums alone, and the paper's bounds on the noise."""
