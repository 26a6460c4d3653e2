"""Colours that can be seen on the page, by the contrast ratio of WCAG 2."""

from __future__ import annotations

#: What pictures lie on, as the style sheet has it.
PANELS = {"light": "#ffffff", "dark": "#1c2127"}
#: The least contrast of what is not text (WCAG 2.1, criterion 1.4.11).
LEAST_CONTRAST = 3.0


def contrast(one: str, other: str) -> float:
    """Return how far two colours are from each other in lightness, from 1 to 21.

    Parameters
    ----------
    one, other : str
        As "#rrggbb".
    """
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def readable_color(color: str, behind: str, least: float = LEAST_CONTRAST) -> str:
    """Return a colour, with its channels as little darker or lighter as makes it seen; so its hue stays strong.

    Parameters
    ----------
    color, behind : str
        As "#rrggbb".
    least : float, default=3.0
        The contrast with what lies behind, 4.5 at most: so much, one of black and white has with any.
    """
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
