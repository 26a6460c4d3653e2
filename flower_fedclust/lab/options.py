"""What a user typed, as values: for the command and for the run config."""

from __future__ import annotations

import json
from typing import Any


def parse_epsilon(text: object) -> float | None:
    """Return epsilon as a number, or None for "none".

    Raises
    ------
    ValueError
        If the text is neither.
    """
    if str(text).lower() == "none":
        return None
    try:
        return float(str(text))
    except ValueError:
        raise ValueError(f"epsilon is '{text}'; it must be a number, or 'none' for no noise.") from None


def parse_value(text: str) -> Any:
    """Return a number, a truth value or a tuple of numbers where the text is one, else the text."""
    try:
        value = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return {"True": True, "False": False, "none": None, "None": None}.get(text, text)
    return value[0] if len(value) == 1 else tuple(value)
