"""FedDP-KMeans (Scott, Lampert and Saulpic, ICML 2025)."""
