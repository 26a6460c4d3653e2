"""A new Flower app: what ``fedclust new-app`` writes."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

from flower_fedclust.numerics.checks import check_choice
from flower_fedclust.results.saving import empty_folder

Api = Literal["message", "strategy"]

_TEMPLATE = Path(__file__).parent / "app_template"
#: What Flower takes as the name of an app.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")


def write_app(folder: str | Path, api: Api = "message") -> Path:
    """Write a Flower app that runs at once: its code, its ``pyproject.toml``, a README and a license.

    Parameters
    ----------
    folder : str or Path
        A new folder; its name is that of the app.
    api : "message" or "strategy", default="message"
        By which of Flower's APIs the app runs its strategy.

    Returns
    -------
    Path
        The absolute path of the folder.

    Raises
    ------
    ValueError
        If Flower takes no app of that name.
    FileExistsError
        If the folder already holds something.
    """
    check_choice("api", api, ("message", "strategy"))
    path = empty_folder(folder)
    if not _NAME.fullmatch(path.name):
        raise ValueError(
            f"Flower takes no app named '{path.name}'; a name begins with a letter, has letters, digits and hyphens "
            "only, and at most 32 of them."
        )
    path.mkdir(parents=True, exist_ok=True)
    for name in ("app.py", "columns.toml", "pyproject.toml", "README.md"):
        text = (_TEMPLATE / name).read_text(encoding="utf-8").replace("NAME", path.name)
        if api == "strategy":
            text = text.replace("fc.MessageStrategy(strategy)", "strategy")
        (path / name).write_text(text, encoding="utf-8")
    (path / "LICENSE").write_text(_license(), encoding="utf-8")
    return path


def _license() -> str:
    """Return the license of this package, as it was installed."""
    found = distribution("flower-fedclust").read_text("licenses/LICENSE")
    return found or "Apache-2.0\n"
