"""The settings of a comparison as a person writes them: options of the command, a TOML file, Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flower_fedclust.harness.compare import Comparison
from flower_fedclust.harness.options import parse_epsilon
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.outside import read_toml
from flower_fedclust.registry import strategies


def comparison_from(settings: Mapping[str, Any]) -> Comparison:
    """Return a comparison from settings as a user typed them, in options of the command or in a TOML file.

    Parameters
    ----------
    settings : mapping of str to anything
        The parameters of `Comparison` by name, with ``set`` for its ``parameters``. Lists may be texts with commas;
        ``strategies`` may be "all"; ``seeds`` may be their number; a budget may be "none".

    Raises
    ------
    ValueError
        If a key does not exist (the message gives the nearest) or a value cannot be read.
    """
    given = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        read = look_up(name, _READERS, "setting of a comparison called")
        given[_FIELDS.get(name, name)] = read(name, value)
    if "strategies" not in given:
        raise ValueError("strategies is missing; name some, or all.")
    return Comparison(**given)


def settings_from_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; paths in it are relative to its folder.

    Raises
    ------
    ValueError
        If the file is not TOML or has a key that does not exist.
    FileNotFoundError
        If there is no such file.
    """
    settings = {key.replace("-", "_"): value for key, value in read_toml(path, "correct the settings").items()}
    for key in settings:
        look_up(key, _READERS, f"setting of a comparison, which {path.name} has, called")
    for key in ("data", "server_data"):
        if isinstance(settings.get(key), str):
            settings[key] = str(path.parent / settings[key])
    return settings


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {value!r}; it must be a text.")
    return value.strip()


def _path(key: str, value: Any) -> Path:
    return value if isinstance(value, Path) else Path(_text(key, value))


def _list(key: str, value: Any) -> list[Any]:
    values = value.split(",") if isinstance(value, str) else value
    if not isinstance(values, (list, tuple)):
        values = [values]
    values = [one.strip() if isinstance(one, str) else one for one in values]
    values = [one for one in values if one != ""]
    if not values:
        raise ValueError(f"{key} is empty; give at least one, or leave it out.")
    return values


def _texts(key: str, value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_text(key, one) for one in _list(key, value)))


def _strategies(key: str, value: Any) -> tuple[str, ...]:
    names = _texts(key, value)
    return tuple(strategies()) if names == ("all",) else names


def _epsilons(key: str, value: Any) -> tuple[float | None, ...]:
    return tuple(dict.fromkeys(parse_epsilon(one) for one in _list(key, value)))


def _seeds(key: str, value: Any) -> tuple[int, ...]:
    is_count = not isinstance(value, (list, tuple)) and "," not in str(value)
    try:
        seeds = [int(one) if isinstance(one, str) else one for one in _list(key, value)]
        checked = [check_integer("a seed", seed, at_least=int(is_count)) for seed in seeds]
    except ValueError:
        raise ValueError(
            f"{key} is '{value}'; give how many seeds there are, such as 3, or which, such as 0,5,7."
        ) from None
    return tuple(range(checked[0])) if is_count else tuple(dict.fromkeys(checked))


def _parameters(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}; it must be a table of parameters and their values.")
    flat: dict[str, Any] = {}
    for name, content in value.items():
        if isinstance(content, Mapping) and (name in strategies() or ":" in name):  # [set.fedsc-sums]
            flat |= {f"{name}.{inner}": one for inner, one in content.items()}
        else:
            flat[name] = content
    parameters = {}
    for name, content in flat.items():
        strategy, dot, parameter = name.rpartition(".")
        # TOML has no null, and its arrays are lists.
        plain = None if content == "none" else tuple(content) if isinstance(content, list) else content
        parameters[strategy + dot + parameter.replace("-", "_")] = plain
    return parameters


def _grid(key: str, value: Any) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(_list(name, values)) for name, values in _parameters(key, value).items()}


def _numbers(key: str, value: Any) -> int | tuple[int, ...]:
    try:
        numbers = [int(one) if isinstance(one, str) else one for one in _list(key, value)]
    except ValueError:
        raise ValueError(f"{key} is '{value}'; give a whole number, or several with commas.") from None
    return numbers[0] if len(numbers) == 1 else tuple(dict.fromkeys(numbers))


_FIELDS = {"set": "parameters"}

_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "strategies": _strategies,
    "datasets": _texts,
    "data": _path,
    "client_column": _text,
    "label_column": _text,
    "columns": _texts,
    "schema": _path,
    "server_data": _path,
    "partitions": _texts,
    "epsilons": _epsilons,
    "seeds": _seeds,
    "engine": _text,
    "set": _parameters,
    "grid": _grid,
    "n_clusters": _numbers,
    # Checked by the class.
    **dict.fromkeys(("n_server_rows", "n_clients", "delta"), lambda _, value: value),
}
