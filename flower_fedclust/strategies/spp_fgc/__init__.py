"""SPP-FGC (He, Wang, Tang, Wang, Wang and Nie): neighbour graphs, Gaussian prototypes, one global graph."""
