"""The ServerApp and the ClientApp that `flwr run` and SuperNodes start."""
