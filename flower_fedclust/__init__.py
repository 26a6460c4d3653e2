"""Federated clustering and visualisation for Flower: clusters of rows that stay where they are."""
