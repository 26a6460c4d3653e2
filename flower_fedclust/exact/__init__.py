"""The arithmetic of answers by row: rows as integers in a public frame, and what a batch of them adds to a sum."""
