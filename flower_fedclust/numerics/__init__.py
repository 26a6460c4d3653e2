"""The mathematics, as functions of NumPy arrays that need neither Flower nor other parts of this package."""
