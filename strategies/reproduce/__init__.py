"""The tables of the papers, run again; ``python -m reproduce --list`` lists them."""
