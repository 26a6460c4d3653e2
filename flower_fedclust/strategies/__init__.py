"""One module a paper: the server half, then the client half, in the order of the paper."""
