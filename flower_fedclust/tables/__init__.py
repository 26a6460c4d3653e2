"""Tables as people have them: what is public of their columns, and how they become rows of numbers."""

from flower_fedclust.tables.preparation import Figures, Preparation
from flower_fedclust.tables.schema import Column, Schema

__all__ = ["Column", "Figures", "Preparation", "Schema"]
