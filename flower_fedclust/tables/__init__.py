"""Tables as people have them: what is public of their columns, and how they become rows of numbers."""

from flower_fedclust.tables.columns import Column, Figures
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Schema

__all__ = ["Column", "Figures", "Preparation", "Schema"]
