"""Groups of rows for pictures: their names, their order and their colours."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Ten colours that people with a colour vision deficiency can distinguish: Petroff 2021, "Accessible Color Sequences
#: for Data Visualization".
TEN_COLORS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
#: Rows without a class.
NO_COLOR = "#c8c8c8"
# Viridis at even steps: its colours differ in lightness, not only in hue.
_VIRIDIS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)


def group_colors(n_groups: int) -> list[str]:
    """Return a colour ("#rrggbb") for each group.

    Up to 10 groups get ``TEN_COLORS``, up to 40 these and lighter and darker shades of them; more get a scale from dark
    violet to light yellow.
    """
    if n_groups > 4 * len(TEN_COLORS):
        scale = np.array([_red_green_blue(color) for color in _VIRIDIS])
        at = np.linspace(0, len(scale) - 1, n_groups)
        return [_hexadecimal([np.interp(x, range(len(scale)), channel) for channel in scale.T]) for x in at]
    colors = []
    for index in range(n_groups):
        shade, color = divmod(index, len(TEN_COLORS))
        towards, share = ((0.0, 0.0), (0.0, 0.45), (255.0, 0.5), (0.0, 0.7))[shade]
        colors.append(_hexadecimal((1 - share) * _red_green_blue(TEN_COLORS[color]) + share * towards))
    return colors


@dataclass(frozen=True)
class Grouping:
    """One way to colour the rows: the group of each row (a client, a class, a cluster), and the names of the groups."""

    name: str
    groups: list[str]
    colors: list[str]
    codes: NDArray[np.intp]


def groupings_of(
    places: Sequence[NDArray[np.float64]],
    names: Sequence[str],
    labels: Sequence[ArrayLike | None] | None,
    columns: Mapping[str, Sequence[ArrayLike | None]],
) -> list[Grouping]:
    """Return the ways to colour rows: by client, by class if classes are known, and by each column.

    Parameters
    ----------
    places : sequence of ndarray of shape (n_i, n_dimensions)
        One per client; only their lengths matter.
    names : sequence of str
        The clients.
    labels : sequence of (array-like of shape (n_i,) or None), optional
        True classes.
    columns : mapping of str to sequence of (array-like of shape (n_i,) or None)
        More values of the rows, by name.

    Raises
    ------
    ValueError
        If the name of a column is taken, or values do not match the rows.
    """
    sizes = [len(part) for part in places]
    clients = Grouping(
        "client", [str(name) for name in names], group_colors(len(names)), np.repeat(np.arange(len(names)), sizes)
    )
    for name in ("client", "class", "row"):
        if name in columns:
            raise ValueError(f"A column is called {name!r}, as something else is already; give it another name.")
    named = ({} if labels is None else {"class": labels}) | dict(columns)
    return [clients, *(_grouping(name, values, names, sizes) for name, values in named.items())]


def _grouping(name: str, values: Sequence[ArrayLike | None], clients: Sequence[str], sizes: Sequence[int]) -> Grouping:
    """Return the rows grouped by a value; rows without a value are the last group."""
    what = "labels" if name == "class" else f"column {name!r}"
    if len(values) != len(sizes):
        raise ValueError(f"{what}: there are {len(values)} arrays for {len(sizes)} clients; give one for each.")
    texts: list[str | None] = []
    for client, part, size in zip(clients, values, sizes, strict=True):
        array = np.full(size, None) if part is None else np.asarray(part)
        if array.shape != (size,):
            raise ValueError(
                f"{what}: those of client {client} have shape {array.shape}; give one for each of {size} rows."
            )
        texts += [_text(value) for value in array.tolist()]
    groups: list[str] = sorted({text for text in texts if text is not None}, key=natural_order)
    colors = group_colors(len(groups))
    number: dict[str | None, int] = {**{text: index for index, text in enumerate(groups)}, None: len(groups)}
    if None in texts:
        groups.append(f"(no {name})")
        colors.append(NO_COLOR)
    return Grouping(name, groups, colors, np.array([number[text] for text in texts], dtype=np.intp))


def _text(value: Any) -> str | None:
    """Return a value as text; 1.0 becomes "1", because the files of two clients may differ in this."""
    if value is None or value != value:
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def natural_order(text: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Sort "site 10" after "site 9"."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(not piece.isdecimal(), int(piece) if piece.isdecimal() else 0, piece) for piece in pieces], text


def base64_text(array: NDArray[Any], dtype: str) -> str:
    """Return the bytes of an array of this type as text for a page."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()


def _red_green_blue(color: str) -> NDArray[np.float64]:
    return np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.float64)


def _hexadecimal(channels: ArrayLike) -> str:
    return "#" + "".join(f"{round(float(channel)):02x}" for channel in np.asarray(channels))
