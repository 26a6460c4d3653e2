"""Values from the texts that a user typed, in the command or in a run config."""

from __future__ import annotations

import json
from typing import Any


def parse_epsilon(text: object) -> float | None:
    """Return epsilon as a number, or None for "none"; raise ValueError for any other text."""
    if str(text).lower() == "none":
        return None
    try:
        return float(str(text))
    except ValueError:
        raise ValueError(f"epsilon is '{text}'; it must be a number, or 'none' for no noise.") from None


def parse_value(text: str) -> Any:
    """Return the number, truth value, None or tuple of numbers that a text denotes, or else the text."""
    try:
        value = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return {"True": True, "False": False, "none": None, "None": None}.get(text, text)
    return value[0] if len(value) == 1 else tuple(value)
