"""Pieces of HTML in which every text is escaped, and numbers as a person reads them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from flower_fedclust.lab.report.data import Spread

#: What is shown if there is no value.
NOTHING = "–"
#: The names of the measures.
NAMES = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI", "cost_per_row": "cost per row"}


class Html(str):
    """Text that is HTML already; any other text is escaped when it is put into a page."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Return an element.

    Parameters
    ----------
    name : str
    *children
        Html as it is, None as nothing, anything else as escaped text.
    **attributes
        ``class_="wide"`` is class, ``aria_label`` is aria-label. True is an attribute without a value; None and False
        leave the attribute out.
    """
    written = ""
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is not None and value is not False:
            written += f" {attribute}" if value is True else f' {attribute}="{html.escape(str(value))}"'
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """Return children one after the other, escaped unless they are Html."""
    texts = (one if isinstance(one, Html) else html.escape(str(one)) for one in children if one is not None)
    return Html("".join(texts))


def table(
    caption: object,
    headings: Sequence[object],
    rows: Iterable[Sequence[object]] = (),
    *,
    bodies: Sequence[Html] | None = None,
    class_: str | None = None,
    identifier: str,
) -> Html:
    """Return a table in a box of its own that scrolls if the page is narrow.

    Parameters
    ----------
    caption : str or Html
    headings, rows : sequence of str or Html, iterable of such sequences
        The first cell of a row is its heading. A cell that is a ``td`` or ``th`` already stays as it is.
    bodies : sequence of Html, optional
        Bodies that are made already, in place of rows.
    class_ : str, optional
    identifier : str
        The id of the caption, unique on the page.
    """
    if bodies is None:
        cells = ([_cell(cell, "td" if index else "th", "row") for index, cell in enumerate(row)] for row in rows)
        bodies = [tag("tbody", *(tag("tr", *row) for row in cells))]
    head = tag("thead", tag("tr", *(_cell(heading, "th", "col") for heading in headings)))
    whole = tag("table", tag("caption", tag("span", caption), id=identifier), head, *bodies, class_=class_)
    # A box that scrolls must be reached by the keyboard and have a name; as a landmark it would be one of dozens.
    return tag("div", whole, class_="box", tabindex="0", role="group", aria_labelledby=identifier)


def details(summary: object, *children: object) -> Html:
    """Return a part that opens on request."""
    return tag("details", tag("summary", summary), *children)


def no_value() -> Html:
    """Return what stands for a missing value: a dash for the eye, words for a screen reader."""
    return joined([tag("span", NOTHING, aria_hidden="true"), unseen("no value")])


def unseen(text: object) -> Html:
    """Return text for screen readers alone."""
    return tag("span", text, class_="unseen")


def bullets(sentences: Iterable[object]) -> Html | None:
    """Return a list; None if it would be empty."""
    items = [tag("li", sentence) for sentence in sentences]
    return tag("ul", *items) if items else None


def number_text(value: float | None, significant: int = 4) -> str:
    """Return a number with so many significant digits; a large one as a whole number, with commas."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, significant - 1 - math.floor(math.log10(abs(value))))}f}"


def share_text(value: float) -> str:
    """Return a figure between 0 and 1, such as an accuracy."""
    return f"{value + 0.0 if abs(value) >= 0.0005 else 0.0:.3f}"  # never "-0.000"


def measure_text(measure: str, value: float) -> str:
    """Return a value of a measure."""
    return number_text(value) if measure == "cost_per_row" else share_text(value)


def bytes_text(value: float, digits: str = ",.1f") -> str:
    """Return a count of bytes in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:{digits}} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def deviation_text(spread: Spread, text: str) -> str:
    """Return the deviation with as many decimals as ``text``, the mean as it is shown; "" if there is no deviation."""
    if spread.deviation is None:
        return ""
    if "e" in text:
        return f"± {spread.deviation:.1e}"
    if spread.deviation <= 1e-9 * abs(spread.mean):
        return "± 0"  # what is left is rounding
    decimals = len(text.partition(".")[2])
    least = 10.0**-decimals
    if 0 < spread.deviation < least / 2:
        return f"± <{least:.{decimals}f}"
    return f"± {spread.deviation:,.{decimals}f}"


def plural(count: int, noun: str) -> str:
    """Return "1 seed", "3 seeds"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def _cell(cell: object, name: str, scope: str) -> Html:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    return tag(name, no_value() if cell == NOTHING else cell, scope=scope if name == "th" else None)
