"""Raw tables: the public facts about their columns, and how they become rows of numbers."""

from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Column, Figures, Schema

__all__ = ["Column", "Figures", "Preparation", "Schema"]
