"""The strategies: each module has the server half, in the order of the paper's steps, and then the client half.

The five papers are in ``feddp_kmeans``, ``fedsc``, ``dp_fedc``, and the folders ``spp_fgc`` and ``maps``, which have a
module for each algorithm. Our own strategies are in ``private_kmeans``, ``private_mixture`` and ``private_density``.
``baselines`` are for comparison, and ``common`` has what several strategies share. The second distribution has more.
docs/shape.md shows how a line of an algorithm becomes a round of Flower.
"""
