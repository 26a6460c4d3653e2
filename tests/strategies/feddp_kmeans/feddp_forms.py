"""FedDP-KMeans or, for the second distribution, its form with the options of the proofs turned off."""

from tested import PAPERS

from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans, FedDPKMeansClient

FORM, CLIENT, OFF = FedDPKMeans, FedDPKMeansClient, {}
if PAPERS:
    from flower_fedclust_papers.feddp_proofs import FedDPKMeansProofs, FedDPKMeansProofsClient

    FORM, CLIENT = FedDPKMeansProofs, FedDPKMeansProofsClient
    OFF = {"margin": 1.0, "simplify_server_data": False, "reduce_diameter": False}


def feddp(n_clusters, **options):
    """Return the strategy with these options."""
    return FORM(n_clusters, **OFF | options)
