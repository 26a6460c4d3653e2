"""Pictures of clusters, and what all pictures share."""
