"""The strategies: each module has the server half, in the order of the paper's steps, and then the client half.

The five papers are in ``feddp_kmeans``, ``fedsc``, ``dp_fedc``, and the folders ``spp_fgc`` and ``maps``, which have a
module for each algorithm. Our own strategies are in ``private_kmeans``, ``private_mixture`` and ``private_density``.
``baselines`` has strategies to compare with, and ``common`` has steps that several strategies share. The second
distribution, ``flower_fedclust_papers``, has more strategies.
docs/shape.md shows how a line of an algorithm becomes a round of Flower.
"""
