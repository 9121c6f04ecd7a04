"""METHODS: every method by its name, and how to build one from settings.

To add a method: write one function of a Model with keyword-only settings that returns a Method, and put it here; then
give it a row in the law table (tests/test_laws.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..core import Method, Model, step_by_mean
from ..errors import SettingError, did_you_mean
from .averaging import fedavg, fedmf, fedncf, fedprox, fedsgd
from .bounds import centralised, local, popularity
from .fcf import fcf
from .fedals import fedals
from .fedrap import fedrap
from .fedrecon import fedrecon
from .fedtrail import fedtrail
from .fedveil import fedveil
from .mixing import apfl, lgmix
from .partial import fedbn, fedper, fedrep
from .pfedrec import pfedrec
from .servers import server_step
from .tethered import ditto, fedclup, pfedme

METHODS: dict[str, Callable[..., Method]] = {
    "popularity": popularity,
    "local": local,
    "centralised": centralised,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedper": fedper,
    "fedrep": fedrep,
    "fedbn": fedbn,
    "ditto": ditto,
    "pfedme": pfedme,
    "apfl": apfl,
    "fedclup": fedclup,
    "lgmix": lgmix,
    "fedrecon": fedrecon,
    "fedals": fedals,
    "fedrap": fedrap,
    "fedtrail": fedtrail,
    "fedveil": fedveil,
    "fcf": fcf,
    "fedmf": fedmf,
    "fedncf": fedncf,
    "pfedrec": pfedrec,
}


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only settings of a method, model or optimiser."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def find_method(name: str) -> Callable[..., Method]:
    if name not in METHODS:
        raise SettingError(did_you_mean(name, METHODS, "method"))
    return METHODS[name]


def coerce(function: Callable[..., Any], name: str, value: Any) -> Any:
    """A setting's value as its type says, from text or a number."""
    hint = get_type_hints(function)[name]
    if isinstance(value, str) and "tuple" in str(hint):
        value = tuple(part for part in value.split(",") if part)
    if get_origin(hint) is Literal:  # 8 for "8"
        value = {str(word): word for word in get_args(hint)}.get(str(value), value)
    try:
        found = TypeAdapter(hint).validate_python(value)
    except ValidationError:
        if get_origin(hint) is Literal:
            raise SettingError(did_you_mean(str(value), map(str, get_args(hint)), f"value of {name}")) from None
        words = [part for kind in get_args(hint) for part in (get_args(kind) or (kind,))] or [hint]
        expected = " or ".join(str(getattr(word, "__name__", word)) for word in words)
        raise SettingError(
            f"{name}={value} was got for a setting that takes {expected}. "
            f"Example: --set {name}={settings_of(function)[name].default}"
        ) from None
    if isinstance(found, float) and not abs(found) < float("inf"):
        raise SettingError(f"{name}={value} was got; a finite number is expected.")
    return found


def build(name: str, model: Model, settings: Mapping[str, Any]) -> Method:
    """A method with these settings; `server`, `server_lr`, `momentum` and `tau` choose the server's optimiser."""
    method = find_method(name)(model, **{k: v for k, v in settings.items() if k in settings_of(METHODS[name])})
    choice = {k: v for k, v in settings.items() if k in SERVER}
    if not choice:
        return method
    if method.server is not step_by_mean or method.pooled:
        raise SettingError(
            f"{name} has no use for a server optimiser ({', '.join(choice)}): its server step is exact. Leave it out."
        )
    return method.but(
        server=server_step(choice.pop("server", "sgd"), **{k.removeprefix("server_"): v for k, v in choice.items()})
    )


SERVER = ("server", "server_lr", "momentum", "tau")
