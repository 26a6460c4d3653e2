"""Figures of Matplotlib, and the files they are saved as."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(width: float, height: float) -> Figure:
    """Return an empty figure, in inches; raise a ValueError if matplotlib is not installed."""
    # Not pyplot, which chooses a backend for the whole process and keeps every figure.
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Pictures need matplotlib; install the extra, pip install 'flower-fedclust[maps]'.") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def saved_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as a PNG, and return its absolute path."""
    file = made_folder_of(path)
    figure.savefig(file, format="png")
    return file


def made_folder_of(path: str | Path) -> Path:
    """Make the folder that a file is to be in; return the absolute path of the file."""
    file = Path(path).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
