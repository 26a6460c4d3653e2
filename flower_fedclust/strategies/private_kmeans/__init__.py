"""Private k-means without public rows: PE-means (2026), and what grew out of it."""
