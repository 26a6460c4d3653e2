"""The lines of ``fedclust list`` about this package's strategies, by purpose, the best strategy first.

The lines are written here, and not taken from the classes, because importing every strategy takes
seconds. A test compares them with what the classes declare.
"""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A strategy in the list."""

    name: str
    #: The units that a whole run can protect: records, persons, clients, or nothing.
    units: tuple[str, ...]
    text: str


RECORD, SUMS, EVERY, NONE = ("record",), ("record", "subject"), ("record", "subject", "client"), ()

#: Purpose -> the strategies for it; strategies with a guarantee come first.
CATALOG: dict[str, tuple[Line, ...]] = {
    "Round clusters": (
        Line("private-kmeans", EVERY, "k-means without public rows: the default"),
        Line("feddp-kmeans", EVERY, "k-means in three sums, from a few public rows"),
        Line("federated-kmeans", NONE, "near the best pooled k-means; sums leave a site"),
        Line("k-fed", NONE, "one round; each site's own centers leave it"),
    ),
    "Clusters that overlap": (
        Line("private-mixture", EVERY, "Gaussians of unequal size, spread and direction"),
        Line("dp-fedc", RECORD, "soft clusters by a factorization; sums leave a site"),
    ),
    "Clusters of any shape": (
        Line("private-density", EVERY, "from a histogram, in up to three directions"),
        Line("spp-fgc-sums", SUMS, "rows vote for pairs of prototypes"),
        Line("fedsc-sums", SUMS, "spectral clustering of round, overlapping clusters"),
        Line("fed-speclust-sums", SUMS, "the same, by learned landmarks"),
        Line("fedsc", NONE, "spectral clustering; the server can read the rows"),
        Line("spp-fgc", NONE, "graphs of rows; the server sees prototypes and codes"),
        Line("fed-speclust", NONE, "by landmarks; the server can read the rows"),
    ),
    "Maps": (
        Line("fed-tsne-sums", SUMS, "t-SNE of centers; each site places its own rows"),
        Line("fed-umap-sums", SUMS, "UMAP of centers; each site places its own rows"),
        Line("fed-tsne", NONE, "t-SNE by landmarks; the server can read the rows"),
        Line("fed-umap", NONE, "UMAP by landmarks; the server can read the rows"),
    ),
    "For comparison": (
        Line("federated-kmeans-private", SUMS, "Lloyd's algorithm with noise, from random points"),
        Line("pooled-kmeans", NONE, "k-means of all rows, which leave the sites"),
        Line("pooled-spectral", NONE, "spectral clusters of all rows, which leave the sites"),
    ),
}
