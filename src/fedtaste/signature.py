"""Settings of a function read from its signature: names, types, bounds, and values given as text.

A setting is a keyword-only parameter. Its bounds are `annotated_types` marks beside its type: `lam: NonNegative = 0.1`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import Annotated, Literal, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from fedtaste.errors import SettingError
from fedtaste.text import did_you_mean

NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]
CountOrNone = Annotated[int, Ge(0)]  # 0 has a meaning of its own: everything at once, no limit
Values = Mapping[str, object]
WORDS = {int: "a whole number", float: "a number", bool: "true or false"}  # of types, in messages


def settings_of(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The keyword-only settings of a method, a model or a server optimiser.

    >>> list(settings_of(lambda model, *, lr=0.1, passes=1: None))
    ['lr', 'passes']
    """
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def check_bounds(function: Callable[..., object], values: Values) -> None:
    """Refuse numbers outside the bounds that the function's signature states."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    for name, value in values.items():
        if name in hints:
            _check_number(name, hints[name], value)


def _check_number(label: str, hint: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return  # True is no number here
    marks = [mark for part in (hint, *get_args(hint)) for mark in getattr(part, "__metadata__", ())]
    low = next((cast(float, mark.ge) for mark in marks if isinstance(mark, Ge)), -inf)
    high = next((cast(float, mark.le) for mark in marks if isinstance(mark, Le)), inf)
    if low <= value <= high:
        return
    limits = f"at least {low:g}" if high == inf else f"at most {high:g}" if low == -inf else f"from {low:g} to {high:g}"
    raise SettingError(f"{label} must be {limits}, got {value:g}.")


def coerce(function: Callable[..., object], name: str, value: object, label: str = "") -> object:
    """The value of a setting as its type and bounds say, from text or a number; `label` is its name in messages.

    >>> def method(model, *, lam: NonNegative = 0.1): ...
    >>> coerce(method, "lam", "0.5")
    0.5
    """
    label = label or name
    default = inspect.signature(function).parameters[name].default
    hint = get_type_hints(inspect.unwrap(function)).get(name) or type(default)
    if isinstance(value, str) and "tuple" in str(hint):
        value = tuple(part for part in value.split(",") if part)
    if get_origin(hint) is Literal:  # 8 for "8"
        value = {str(word): word for word in get_args(hint)}.get(str(value), value)
    try:
        result = TypeAdapter(hint).validate_python(value)
    except ValidationError:
        raise _wrong_type(label, hint, value, default) from None
    if isinstance(result, float) and not abs(result) < float("inf"):
        raise SettingError(f"{label} must be a finite number, got {value}.")
    _check_number(label, get_type_hints(inspect.unwrap(function), include_extras=True).get(name), result)
    return result


def _wrong_type(label: str, hint: object, value: object, default: object) -> SettingError:
    if get_origin(hint) is Literal:
        return SettingError(did_you_mean(str(value), map(str, get_args(hint)), f"value of {label}"))
    parts = [part for kind in get_args(hint) for part in (get_args(kind) or (kind,))] or [hint]
    expected = " or ".join(WORDS.get(part, str(part)) for part in parts)
    return SettingError(f"{label} must be {expected}, got {value}. Example: --set {label}={default}")
