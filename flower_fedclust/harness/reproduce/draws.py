"""What each seed of each row gave, kept in a file: a command that was interrupted goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flower_fedclust.harness.folder import installed_versions


class Draw(NamedTuple):
    """The figures of one seed, by column, and how long they took."""

    figures: Mapping[str, float]
    seconds: float


class Draws:
    """The draws of one command.

    Parameters
    ----------
    path : Path, optional
        A file to which every draw is added at once, and from which those that it holds are taken. By default nothing is
        kept.
    paper : str, default=""
        Its name.

    Raises
    ------
    FileExistsError
        If the file holds draws of another paper, or of other versions.
    """

    def __init__(self, path: Path | None = None, paper: str = "") -> None:
        self._path = path
        self._known: dict[tuple[str, str, int], Draw] = {}
        if path is None:
            return
        about: dict[str, Any] = {"paper": paper, **installed_versions()}
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = kept[: kept.rfind("\n") + 1]  # the last line may have been cut off
        path.write_text(whole or json.dumps(about) + "\n", encoding="utf-8")
        if not whole:
            return
        head, *lines = map(json.loads, whole.splitlines())
        other = [f"{name} {head.get(name)}" for name in about if head.get(name) != about[name]]
        if other:
            raise FileExistsError(
                f"{path.parent} holds draws of another kind ({', '.join(other)}); name a new folder, so that none are "
                "mixed."
            )
        for line in lines:
            self._known[line["table"], line["row"], line["seed"]] = Draw(line["figures"], line["seconds"])

    def of(self, table: str, row: str, seed: int, measure: Callable[[int], Mapping[str, float]]) -> Draw:
        """Return what is kept of a seed of a row, or else measure it and keep it."""
        found = self._known.get((table, row, seed))
        if found is None:
            start = time.perf_counter()
            figures = {column: float(value) for column, value in measure(seed).items()}
            found = Draw(figures, time.perf_counter() - start)
            self._add({"table": table, "row": row, "seed": seed, "seconds": found.seconds, "figures": figures})
        return found

    def _add(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
