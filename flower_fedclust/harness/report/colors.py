"""Colours that can be seen on the page, by the contrast ratio of WCAG 2."""

from __future__ import annotations

#: The background of pictures, as in the style sheet.
PANELS = {"light": "#ffffff", "dark": "#1c2127"}
#: The least contrast of graphics (WCAG 2.1, criterion 1.4.11).
LEAST_CONTRAST = 3.0


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours ("#rrggbb"), from 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def readable_color(color: str, behind: str, least: float = LEAST_CONTRAST) -> str:
    """Return a colour, made darker or lighter just enough to have the least contrast (at most 4.5) with another."""
    sign = max((-1, 1), key=lambda sign: contrast(_shifted(color, 255 * sign), behind))
    shades = (_shifted(color, sign * step) for step in range(256))
    return next(one for one in shades if contrast(one, behind) >= least)


def _luminance(color: str) -> float:
    shares = [channel / 255 for channel in _channels(color)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _shifted(color: str, amount: int) -> str:
    return "#" + "".join(f"{min(max(channel + amount, 0), 255):02x}" for channel in _channels(color))


def _channels(color: str) -> list[int]:
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]
