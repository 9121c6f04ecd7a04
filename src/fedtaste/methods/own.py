"""Methods of the user's own: functions outside fedtaste, named "package.module:function".

Only `register` and `import_method` make such a name known, in this process. Names that come from a run folder, from a
message of a federation or from other files are looked up and never imported, so that a file cannot make fedtaste run
somebody's code. See docs/contributing.md, "A method of your own".
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import cast, get_type_hints

from fedtaste.core import Method, Model
from fedtaste.errors import SettingError
from fedtaste.methods.registry import NEEDED, PUBLIC_NAMES, Algorithm, MethodSpec

Factory = Callable[..., Method | Algorithm]
OWN: dict[str, MethodSpec[...]] = {}  # the user's methods that this process knows, by name
NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def register(method: Factory, typed: str = "") -> str:
    """Make a function known as a method in this process, and return its name "module:function" for Settings. Errors
    name it as the user typed it."""
    if not callable(method):
        raise SettingError(f"A method must be a name or a function, got {type(method).__name__}. {NEEDED}")
    spec = method if isinstance(method, MethodSpec) else MethodSpec(method)
    factory = spec.factory
    name = f"{factory.__module__}:{getattr(factory, '__qualname__', spec.__name__)}"
    _check_signature(typed or name, factory)
    OWN[name] = replace(spec, own_name=typed or name)
    return name


def import_method(name: str) -> str:
    """Import "module:function" and register it; returns the name. Call it only with names that the user typed."""
    if ".py:" in name or not NAME.fullmatch(name):
        hint = f' Without .py: "{name.replace(".py:", ":")}".' if ".py:" in name else ""
        raise SettingError(f'"{name}" must be a method\'s name, or package.module:function.{hint}')
    module_name, _, path = name.partition(":")
    if module_name == "__main__":
        raise SettingError(f"{name} was defined in a script or a notebook. Put the function into a module, as in my:f.")
    method: object = _import_module(name, module_name)
    for part in path.split("."):
        if not hasattr(method, part):
            close = difflib.get_close_matches(part, [n for n, v in vars(method).items() if callable(v)], n=1)
            hint = f' Did you mean "{module_name}:{close[0]}"?' if close else ""
            raise SettingError(f'The module {module_name} has no function "{path}".{hint}')
        method = getattr(method, part)
    if not callable(method):
        raise SettingError(f"{name} must be a function, got {type(method).__name__}. {NEEDED}")
    # Also under the name given, where it was imported from elsewhere.
    OWN[name] = OWN[register(cast(Factory, method), name)]
    return name


def _import_module(name: str, module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise SettingError(
                f"{name} cannot be imported: {module_name} needs {error.name}, which is missing."
            ) from error
        raise SettingError(
            f"{name} cannot be imported: there is no module {error.name} in the current folder or on PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:
        raise SettingError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def find_own(name: str) -> MethodSpec[...]:
    """A method that this process knows; SettingError, with what to do, for one that nobody gave here."""
    if name in OWN:
        return OWN[name]
    if name.startswith("__main__:") or "<" in name:
        raise SettingError(
            f"{name} was defined in a script or a notebook, which this process does not have. Define the function "
            "again and pass it to fedtaste (method=...), or put it into a module before the next run."
        )
    raise SettingError(
        f"{name} is a method of somebody's own, not of fedtaste. It was not imported, because a folder or message may "
        f"name any code. If you trust the module, allow it: --method {name} on the command line, a line "
        f'method = "{name}" in node.toml, or in Python fedtaste.methods.find_method({name!r}).'
    )


def _check_signature(name: str, factory: Factory) -> None:
    """Refuse what is not written in Python, a function that cannot be called with a model alone, and one whose settings
    have no readable types."""
    if not _is_python(factory):
        raise SettingError(f"{name} is no function that is written in Python for fedtaste. {NEEDED}")
    try:
        parameters = list(inspect.signature(factory).parameters.values())
        hints = get_type_hints(inspect.unwrap(factory))
    except (ValueError, TypeError, NameError) as error:
        raise SettingError(f"The signature of {name} cannot be read ({error}). {NEEDED}") from error
    first, rest = parameters[:1], parameters[1:]
    if not first or first[0].kind in (first[0].KEYWORD_ONLY, first[0].VAR_KEYWORD):
        raise SettingError(f"{name} does not take a Model as its first argument. {NEEDED}")
    kind = hints.get(first[0].name)
    if isinstance(kind, type) and not issubclass(Model, kind):
        raise SettingError(f"{name} takes {kind.__name__} as its first argument, not a Model. {NEEDED}")
    for parameter in rest:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise SettingError(f"{parameter.name} of {name} must be a keyword-only setting, after a *. {NEEDED}")
        if parameter.default is parameter.empty and parameter.name not in PUBLIC_NAMES:
            raise SettingError(f"The setting {parameter.name} of {name} needs a default. {NEEDED}")


def _is_python(factory: Factory) -> bool:
    """Whether this is a function, a class with a function `method`, or an object with a function `__call__`."""
    if isinstance(factory, functools.partial):
        return _is_python(factory.func)
    code: object = inspect.unwrap(factory)
    if inspect.isclass(code):
        code = getattr(code, "method", None)
    elif not inspect.isroutine(code):
        code = getattr(type(code), "__call__", None)  # noqa: B004 (its code is looked at)
    return inspect.isfunction(code) or inspect.ismethod(code)
