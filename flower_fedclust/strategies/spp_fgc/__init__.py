"""SPP-FGC (He, Wang, Tang, Wang, Wang and Nie): neighbor graphs, Gaussian prototypes, one global graph."""
