"""Parameters declared in one place: a field gives name, type, default and bounds; the docstring gives the meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
import reprlib
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_choice, check_integer, check_real

#: Matches what separates the sections of a numpydoc docstring.
_SECTION = r"\n\n(?=[A-Z][A-Za-z ]+\n-+\n)"
#: How the section of parameters begins.
_PARAMETERS = "Parameters\n----------"


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    at_least: float = -np.inf,
    above: float = -np.inf,
    at_most: float = np.inf,
    below: float = np.inf,
    kw_only: bool = True,
) -> Any:
    """Declare a parameter of a strategy, and the bounds of its value.

    The annotation gives the type. A number is checked against the bounds, a ``Literal`` against its values.

    Parameters
    ----------
    default : optional
        Without one, the parameter must be given.
    at_least, above, at_most, below : float, optional
        Bounds of a number.
    kw_only : bool, default=True
        Whether it can be given by name alone.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"bounds": bounds})


@dataclass_transform(
    kw_only_default=True, eq_default=False, field_specifiers=(parameter, dataclasses.field)
)
class Declared:
    """Base of classes whose parameters are fields: each annotation is a keyword of the constructor.

    Subclasses inherit the parameters of their bases, and their documentation.
    """

    #: The documentation of each parameter, by name, inherited ones included.
    parameter_docs: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
        _check_order_of_bases(cls)
        _complete_docs(cls)

    def __new__(cls, *_: Any, **parameters: Any) -> Self:
        """Raise a TypeError if a parameter does not exist; the message suggests the nearest name."""
        known = dict.fromkeys(cls.parameter_names())
        for name in (
            parameters.keys() - known.keys() - inspect.signature(cls.__init__).parameters.keys()
        ):
            try:
                look_up(name, known, f"parameter of {cls.__name__} called")
            except ValueError as error:
                raise TypeError(str(error)) from None
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.check_parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        """Convert NumPy numbers to Python's: a sensitivity computed from a float32 would be rounded to float32."""
        kinds = ((np.floating, float), (np.integer, int), (np.bool_, bool))
        super().__setattr__(
            name,
            next(
                (kind(value) for numpy_kind, kind in kinds if isinstance(value, numpy_kind)), value
            ),
        )

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter. Extended by subclasses."""
        for name, hint, bounds in _declared(type(self)):  # type: ignore[arg-type]
            _check(name, getattr(self, name), hint, bounds)

    # scikit-learn's interface of an estimator. BaseEstimator itself would make the process of every message at a site
    # import scikit-learn, SciPy's statistics and pandas, which takes longer than most answers.

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters by name, as scikit-learn's ``clone`` and searches ask for them."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Set some parameters, and return the object; values are checked when it runs."""
        known = dict.fromkeys(self.parameter_names())
        for name, value in parameters.items():
            look_up(name, known, f"parameter of {type(self).__name__} called")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Show the parameters whose values are not the defaults."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        changed = [
            f"{name}={reprlib.repr(value)}"
            for name, value in sorted(self.get_params().items())
            if value is not fields[name] and repr(value) != repr(fields[name])
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.init)  # type: ignore[arg-type]

    @classmethod
    def required_parameters(cls) -> tuple[str, ...]:
        """Return the names of the parameters that have no default."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return tuple(
            field.name for field in fields if field.init and field.default is dataclasses.MISSING
        )


def check_is_strategy(strategy: object) -> None:
    """Raise a TypeError if a strategy is given as a name or a class."""
    if not isinstance(strategy, Declared):
        raise TypeError(
            f"strategy is {strategy!r}; give an object of a strategy, such as KFED(n_clusters=4)."
        )


@cache
def _declared(cls: type) -> tuple[tuple[str, Any, dict[str, float]], ...]:
    hints = get_type_hints(cls)
    return tuple(
        (field.name, hints[field.name], field.metadata.get("bounds", {}))
        for field in dataclasses.fields(cls)
        if field.init
    )


def _check(name: str, value: object, hint: Any, bounds: dict[str, float]) -> None:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    # In older versions of NumPy, ArrayLike includes numbers. Arrays are checked where they are used.
    if bytes in kinds or (value is None and NoneType in kinds):
        return
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and (isinstance(value, str) or not {int, float} & set(kinds)):
        check_choice(name, value, choices)
    elif float in kinds:
        check_real(name, value, **bounds)
    elif int in kinds:
        at_least, at_most = bounds.get("at_least", -np.inf), bounds.get("at_most", np.inf)
        check_integer(
            name, value, at_least=0 if at_least == -np.inf else int(at_least), at_most=at_most
        )
    elif kinds == (bool,) and not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} is {value!r}; it must be True or False.")


def _check_order_of_bases(cls: type[Declared]) -> None:
    """Raise a TypeError if a base that only inherits a field comes before one that redeclares it.

    A dataclass takes all fields of its first base, inherited fields too, so a parameter of the second base would
    silently stop being one.
    """
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        declares = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
        if declares.__dict__["__dataclass_fields__"][field.name] is not field:
            raise TypeError(
                f"{cls.__name__}: name {declares.__name__}, which declares {field.name}, as its first base."
            )


def _complete_docs(cls: type[Declared]) -> None:
    """Add the documentation of inherited parameters to a class."""
    own = _documented(cls.__doc__ or "")
    inherited: dict[str, str] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= base.__dict__.get("parameter_docs", {})
    cls.parameter_docs = inherited | own
    added = [
        inherited[name] for name in cls.parameter_names() if name not in own and name in inherited
    ]
    if added and cls.__doc__:
        summary, *sections = re.split(_SECTION, inspect.cleandoc(cls.__doc__))
        documented = [section for section in sections if section.startswith(_PARAMETERS)] or [
            _PARAMETERS
        ]
        others = [section for section in sections if section not in documented]
        cls.__doc__ = "\n\n".join([summary, "\n".join([*documented, *added]), *others]) + "\n"


def _documented(docstring: str) -> dict[str, str]:
    """Return the documentation of each parameter in a docstring, by name."""
    sections = re.split(_SECTION, inspect.cleandoc(docstring))
    section = next(
        (
            candidate.removeprefix(_PARAMETERS)
            for candidate in sections
            if candidate.startswith(_PARAMETERS)
        ),
        "",
    )
    documented = {}
    for entry in re.split(r"\n(?=\S)", section.strip()):
        names = re.split(r" : |\n", entry, maxsplit=1)[0]
        for name in filter(None, names.split(", ")):
            documented[name] = name + entry.removeprefix(names)
    return documented
