"""Pieces of HTML in which every text is escaped, and numbers as a person reads them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from flower_fedclust.lab.report.data import Spread

#: What stands where there is no value.
NOTHING = "–"


class Html(str):
    """Text that is HTML already. Every other text is escaped where it is put into a page."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Return an element.

    Parameters
    ----------
    name : str
    *children
        Html as it is, None as nothing, anything else as escaped text.
    **attributes
        ``class_="wide"`` is class, ``aria_label`` is aria-label. True is an attribute without a value, None and False
        are none.
    """
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in ("br", "col", "input"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """Return children one after the other, escaped where they are not Html."""
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(str(child)) for child in children if child is not None
        )
    )


def table(
    caption: object,
    headings: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    class_: str | None = None,
    identifier: str,
) -> Html:
    """Return a table in a box of its own that scrolls where the page is narrow.

    Parameters
    ----------
    caption : str or Html
    headings : sequence of str or Html
    rows : iterable of sequence of str or Html
        The first cell of each is its heading. A cell that is a ``td`` or ``th`` already stays as it is.
    class_ : str, optional
    identifier : str
        Of the caption, unlike any other on the page.
    """
    body = tag("tbody", *(tag("tr", *(_cell(cell, index == 0) for index, cell in enumerate(row))) for row in rows))
    return boxed_table(caption, headings, [body], class_=class_, identifier=identifier)


def boxed_table(
    caption: object,
    headings: Sequence[object],
    bodies: Sequence[Html],
    *,
    class_: str | None = None,
    identifier: str,
) -> Html:
    """Return a table as :func:`table` does, of bodies that are made already."""
    head = tag("thead", tag("tr", *(_heading(heading) for heading in headings)))
    whole = tag("table", tag("caption", tag("span", caption), id=identifier), head, *bodies, class_=class_)
    # A box that scrolls must be reached by the keyboard, and say what it is; as a landmark it would be one of dozens.
    return tag("div", whole, class_="box", tabindex="0", role="group", aria_labelledby=identifier)


def details(summary: object, *children: object) -> Html:
    """Return what opens when asked."""
    return tag("details", tag("summary", summary), *children)


def no_value() -> Html:
    """Return what stands where there is no value: a dash to see, words to hear."""
    return joined([tag("span", NOTHING, aria_hidden="true"), unseen("no value")])


def unseen(text: object) -> Html:
    """Return text for screen readers alone."""
    return tag("span", text, class_="unseen")


def sentence_list(sentences: Iterable[object]) -> Html | None:
    """Return a list; None of nothing."""
    items = [tag("li", sentence) for sentence in sentences]
    return tag("ul", *items) if items else None


def number_text(value: float | None, significant: int = 4) -> str:
    """Return a number with so many digits that count; a large one whole, with commas."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{decimals_of(value, significant)}f}" if _is_readable(value) else f"{value:.{significant - 1}e}"


def decimals_of(value: float, significant: int) -> int:
    """Return how many decimals show so many digits that count, none for a large number."""
    return 0 if value == 0 else max(0, significant - 1 - math.floor(math.log10(abs(value))))


def share_text(value: float) -> str:
    """Return a figure between 0 and 1, such as an accuracy."""
    return f"{value:.3f}"


def bytes_text(value: float) -> str:
    """Return a count of bytes in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def deviation_text(spread: Spread, text: str) -> str:
    """Return the deviation with as many decimals as the mean was shown with; "" where there is none.

    Parameters
    ----------
    spread : Spread
    text : str
        The mean as it is shown.
    """
    if spread.deviation is None:
        return ""
    if "e" in text:
        return f"± {spread.deviation:.1e}"
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


def _is_readable(value: float) -> bool:
    return value == 0 or 1e-4 <= abs(value) < 1e9


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _cell(cell: object, is_heading: bool) -> Html:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    cell = no_value() if cell == NOTHING else cell
    return tag("th", cell, scope="row") if is_heading else tag("td", cell)


def _heading(heading: object) -> Html:
    return heading if isinstance(heading, Html) and heading.startswith("<th") else tag("th", heading, scope="col")
