"""Parts of the site that come from the code: the table of strategies, the chooser, and a page for each class."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import class_examples

import flower_fedclust as fc
from flower_fedclust.engine import Entry
from flower_fedclust.engine.rounds import KINDS
from flower_fedclust.registry import find, strategies

DOCS = Path(__file__).parent
#: The pages of classes are written here; they are not kept.
API = DOCS / "api"
#: The reproduced tables of papers belong to the second distribution; the site shows copies, which are not kept.
TABLES, COPIES = DOCS.parent / "strategies" / "docs", DOCS / "reproduced"

#: The chooser's questions: name, question, and answers with their labels.
QUESTIONS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "finds",
        "What are you looking for?",
        {
            "round": "groups of similar rows",
            "any form": "groups of any shape (rings, moons)",
            "soft": "rows that belong to several groups",
            "map": "a map to look at",
        },
    ),
    (
        "sees",
        "What may leave a site?",
        {
            "sums": "only sums over its rows",
            "centers": "also the centers of its own groups",
            "rows": "anything",
        },
    ),
    (
        "unit",
        "Whom should the noise protect?",
        {
            "record": "each row",
            "subject": "each person, with all rows of the person at a site",
            "client": "each site or device as a whole",
            "": "nobody: no noise",
        },
    ),
    (
        "public",
        "Does the server have a few public rows like those at the sites?",
        {"no": "no", "yes": "yes"},
    ),
    (
        "rounds",
        "How often can the sites be asked?",
        {"many": "as often as it takes", "few": "at most three times"},
    ),
)

#: Wishes that can be dropped if nothing fits, the least important first, and how the chooser says it.
_GIVEN_UP = (
    ("rounds", "many", "it asks the sites more often"),
    ("sees", "rows", "more leaves a site"),
    ("public", "yes", "it needs public rows"),
    ("unit", "subject", "it protects each person, but not a site as a whole"),
    (
        "unit",
        "record",
        "it protects each row, but not a person with several rows, or a site as a whole",
    ),
    ("unit", "", "it adds no noise, so no epsilon covers it"),
)


def strategy_table() -> str:
    """Return a table of all strategies, from their declarations."""
    lines = ["| strategy | what it does | source | reveals | guarantee |", "|---|---|---|---|---|"]
    for name, entry in strategies().items():
        guarantee = " or ".join(entry.units) or "none"
        summary = entry.summary.replace("|", "\\|")
        page = f"api/{entry.strategy.__name__}.md"
        lines.append(
            f"| [`{name}`]({page}) | {summary} | {entry.source} | {', '.join(entry.reveals)} | {guarantee} |"
        )
    return "\n".join(lines)


@cache
def _n_rounds(name: str) -> int:
    entry = find(name)
    needed = entry.strategy.required_parameters()
    given: dict[str, Any] = {"n_clusters": 3, **entry.fixed, **entry.example}
    if "server_data" in needed:
        given["server_data"] = [[0.0], [1.0], [2.0]]
    return int(entry.strategy(**given).num_rounds)


def fits(entry: Entry, wishes: Mapping[str, str]) -> bool:
    """Tell whether a strategy fits the answers."""
    needs_rows = "server_data" in entry.strategy.required_parameters()
    allowed = KINDS[: KINDS.index(wishes["sees"]) + 1]
    return (
        entry.finds == wishes["finds"]
        and set(entry.reveals) <= set(allowed)
        and (wishes["unit"] in entry.units if wishes["unit"] else True)
        and (wishes["public"] == "yes" or not needs_rows)
        # The first one only says hello.
        and (wishes["rounds"] == "many" or _n_rounds(entry.name) <= 4)
    )


def _rank(entry: Entry, wishes: Mapping[str, str]) -> tuple[bool, int]:
    """Return the key by which the best of the fitting strategies is the least."""
    sees = max(KINDS.index(kind) for kind in entry.reveals)
    if not wishes["unit"]:
        return False, -sees  # prefer a strategy that uses what may leave
    return wishes[
        "public"
    ] == "yes" and "server_data" not in entry.strategy.required_parameters(), sees


def choose(wishes: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the strategy for five answers, and the wishes that had to be dropped."""
    subsets = [steps for size in range(len(_GIVEN_UP)) for steps in combinations(_GIVEN_UP, size)]
    # Noise is dropped last.
    for steps in sorted(subsets, key=lambda steps: _GIVEN_UP[-1] in steps):
        changed = {**wishes, **{question: answer for question, answer, _ in steps}}
        if found := [entry for entry in strategies().values() if fits(entry, changed)]:
            return min(found, key=lambda entry: _rank(entry, changed)).name, tuple(
                said for *_, said in steps
            )
    raise ValueError(f"no strategy finds {wishes['finds']}.")


def chooser() -> str:
    """Return the five questions, with a strategy for every combination of answers."""
    names = [name for name, _, _ in QUESTIONS]
    table = {}
    for answers in product(*(options for _, _, options in QUESTIONS)):
        name, given_up = choose(dict(zip(names, answers, strict=True)))
        table["|".join(answers)] = [name, list(given_up)]
    about = {
        name: [entry.strategy.__name__, entry.summary]
        for name, entry in strategies().items()
        if entry.finds is not None
    }
    fields = []
    for name, question, options in QUESTIONS:
        choices = "".join(
            f'<label><input type="radio" name="{name}" value="{value}"{" checked" if not index else ""}> {said}</label>'
            for index, (value, said) in enumerate(options.items())
        )
        fields.append(f"<fieldset><legend>{question}</legend>{choices}</fieldset>")
    data = json.dumps({"questions": names, "answers": table, "about": about})
    # Blank lines would end the raw block.
    page = (
        '<form id="chooser">'
        + "".join(fields)
        + '<div class="answer" aria-live="polite"></div></form>'
        f'<script type="application/json" id="chooser-data">{data}</script><script src="_static/chooser.js"></script>'
    )
    return f"```{{raw}} html\n{page}\n```"


def strategy_classes() -> str:
    """Return the reference of all strategies' classes; :func:`write_class_pages` turns its blocks into pages."""
    classes = dict.fromkeys(entry.strategy for entry in strategies().values())
    blocks = [
        f"```{{eval-rst}}\n.. autoclass:: {found.__module__}.{found.__name__}\n```"
        for found in classes
    ]
    return "\n\n".join(blocks)


def public_names(module: ModuleType) -> list[str]:
    """Return the names of what a module offers, without the modules among them."""
    names = getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


def other_names() -> str:
    """Return the reference of the public names that no other page describes."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    blocks = ["```{eval-rst}\n.. automodule:: flower_fedclust.authoring\n```"]
    for module in (fc, fc.authoring):
        for name in public_names(module):
            if not re.search(rf"flower_fedclust\.(\w+\.)*{name}\b", pages):
                directive = (
                    "autoclass" if isinstance(getattr(module, name), type) else "autofunction"
                )
                members = "   :members:\n" if directive == "autoclass" else ""
                blocks.append(
                    f"```{{eval-rst}}\n.. {directive}:: {module.__name__}.{name}\n{members}```"
                )
    return "\n\n".join(blocks)


#: Blocks that pages insert at an HTML comment with their name, which readers of the source do not see.
BLOCKS: Mapping[str, Callable[[], str]] = {
    "strategies": strategy_table,
    "chooser": chooser,
    "strategy_classes": strategy_classes,
    "other_names": other_names,
}


def filled_in(text: str) -> str:
    """Return a page with its blocks inserted."""
    for name, made in BLOCKS.items():
        if f"<!-- {name} -->" in text:
            text = text.replace(f"<!-- {name} -->", made())
    return text


_CLASS = re.compile(r"```\{eval-rst\}\n(\.\. autoclass:: ([\w.]+)\n.*?)```\n*", re.DOTALL)


def page_of(path: str) -> str:
    """Return the name of a class's page."""
    return path.rpartition(".")[2]


def example_of(path: str) -> str | None:
    """Return a complete example of a class, or None if there is none."""
    name = page_of(path)
    if name in class_examples.EXAMPLES:
        return class_examples.EXAMPLES[name]
    entries = [entry for entry in strategies().values() if entry.strategy.__name__ == name]
    return class_examples.of_strategy(entries[0]) if entries else None


def described_classes() -> dict[str, str]:
    """Return all classes of the reference with their directives."""
    texts = [
        filled_in(page.read_text(encoding="utf-8"))
        for page in sorted((DOCS / "reference").glob("*.md"))
    ]
    return {path: block for text in texts for path, block in class_blocks(text)}


def class_blocks(text: str) -> list[tuple[str, str]]:
    """Return the classes of one page of the reference with their directives."""
    return [(found.group(2), found.group(1)) for found in _CLASS.finditer(text)]


def with_list_of_classes(text: str) -> str:
    """Return a page of the reference with a list of its classes, which have their own pages."""
    found = class_blocks(text)
    if not found:
        return text
    lines = ["| class | what it is |", "|---|---|"]
    for path, _ in found:
        lines.append(
            f"| [`{page_of(path)}`](../api/{page_of(path)}.md) | {_first_sentence(path)} |"
        )
    pages = "\n".join(f"../api/{page_of(path)}" for path, _ in found)
    before, after = (
        text[: _CLASS.search(text).start()],
        _CLASS.sub("", text[_CLASS.search(text).start() :]),
    )
    return (
        f"{before}\n"
        + "\n".join(lines)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n\n{after}"
    )


def docstring_of(path: str) -> str:
    """Return the docstring of a class."""
    module, _, name = path.rpartition(".")
    return str(getattr(import_module(module), name).__doc__ or "")


def _first_sentence(path: str) -> str:
    text = docstring_of(path).strip().partition("\n\n")[0]
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`").replace("|", "\\|")


def write_class_pages() -> None:
    """Write a page for each class of the reference."""
    API.mkdir(exist_ok=True)
    wanted = {}
    of_strategies = {entry.strategy.__name__ for entry in strategies().values()}
    for path, block in described_classes().items():
        text = f"# {page_of(path)}\n\n```{{eval-rst}}\n{block}```\n"
        if page_of(path) in of_strategies:
            text += "\n[How its rounds become rounds of Flower](../shape.md)\n"
        if (example := example_of(path)) is not None:
            text += f"\n## Example\n\n```python\n{example.strip()}\n```\n"
        wanted[API / f"{page_of(path)}.md"] = text
    for page in set(API.glob("*.md")) - set(wanted):
        page.unlink()
    for page, text in wanted.items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def copy_reproduced_tables() -> None:
    """Copy the pages with the reproduced tables of papers into the site."""
    COPIES.mkdir(exist_ok=True)
    tables = {path.name: path.read_bytes() for path in TABLES.iterdir()}
    for page in COPIES.iterdir():
        if page.name not in tables:
            page.unlink()
    for name, content in tables.items():
        copy = COPIES / name
        if not copy.exists() or copy.read_bytes() != content:
            copy.write_bytes(content)


def with_reproduced_tables(text: str, paper: str) -> str:
    """Return the page of a paper with links to the copies of its tables, and a list of them."""
    text = text.replace("../../strategies/docs/", f"../{COPIES.name}/")
    found = sorted(path.stem for path in TABLES.glob(f"{paper}*.md"))
    if not found:
        return text
    pages = "\n".join(f"../{COPIES.name}/{name}" for name in found)
    return f"{text}\n## All tables\n\n```{{toctree}}\n{pages}\n```\n"
