"""DP-FedC: a factorisation that clients learn together; its class, the paper's own noise, and what its theorems say."""
