"""Running strategies side by side, and showing what came of it."""
