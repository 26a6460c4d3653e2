"""The arithmetic of answers by row: rows as integers in a public frame, and sums over batches of them."""
