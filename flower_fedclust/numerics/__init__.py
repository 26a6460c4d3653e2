"""The mathematics: NumPy in, NumPy out. Knows neither Flower nor anything else of this package."""
