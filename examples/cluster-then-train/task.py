"""What both apps share: the rows of a site, the clusters as further columns, and a softmax regression to train."""

import numpy as np
from flwr.app import Context

import flower_fedclust as fc
from flower_fedclust.data import load_dataset, partition

N_CLUSTERS, N_CLASSES, N_PIXELS = 10, 10, 64
N_WEIGHTS = N_PIXELS + N_CLUSTERS + 1


def load(context: Context) -> fc.ClientData:
    """Return one site's digits and their classes."""
    site = context.node_config
    sites = partition(
        load_dataset("digits"), "dirichlet:0.5", n_clients=int(site["num-partitions"])
    )
    index = int(site["partition-id"])
    return fc.ClientData(sites.clients[index], sites.labels[index])


def private_clusters() -> fc.PrivateKMeans:
    """Return the strategy that finds the clusters. Its epsilon covers the clusters, and not the training."""
    return fc.PrivateKMeans(N_CLUSTERS, epsilon=5.0, max_norm=6.0)


def features(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return rows with a column for each cluster, which is 1 if the row is in it, and a column of ones."""
    squares = (rows**2).sum(axis=1)[:, None] - 2 * rows @ centers.T + (centers**2).sum(axis=1)
    return np.hstack([rows, np.eye(N_CLUSTERS)[squares.argmin(axis=1)], np.ones((len(rows), 1))])


def trained(weights: np.ndarray, centers: np.ndarray, data: fc.ClientData) -> np.ndarray:
    """Return the weights after 20 steps of gradient descent on a site's rows."""
    known, columns = np.eye(N_CLASSES)[data.labels], features(data.rows, centers)
    for _ in range(20):
        scores = np.exp(columns @ weights - (columns @ weights).max(axis=1, keepdims=True))
        weights = weights - 0.5 * columns.T @ (
            scores / scores.sum(axis=1, keepdims=True) - known
        ) / len(columns)
    return weights


def accuracy(weights: np.ndarray, centers: np.ndarray, data: fc.ClientData) -> float:
    """Return the share of a site's rows whose class the weights find."""
    return float(((features(data.rows, centers) @ weights).argmax(axis=1) == data.labels).mean())
