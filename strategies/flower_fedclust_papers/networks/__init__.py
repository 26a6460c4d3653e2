"""Neural networks in PyTorch, an optional extra: NumPy arrays go in and come out."""
