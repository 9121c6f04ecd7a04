"""MethodSpec and `define`: a federated method with its defaults, presets, the settings it does not read, and notes.

A method's own file attaches them with `define`, so that nothing else has to know the method:

    @define(defaults={"ranking": {"rounds": 3, "lr": 1.0}})
    def local(model: Model, *, lr: NonNegative = 1.0, passes: Count = 5) -> Method: ...

A method with many settings is a frozen dataclass whose fields are the settings and which has `method() -> Method`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Generic, NamedTuple, ParamSpec, Protocol

from torch import Tensor

from fedtaste.core import Method
from fedtaste.errors import FedtasteError, SettingError
from fedtaste.methods.search_space import Search
from fedtaste.signature import Values, check_bounds, settings_of

P = ParamSpec("P")


class Algorithm(Protocol):
    """A method written as a class: its fields are the settings."""

    def method(self) -> Method: ...


class RunContext(NamedTuple):
    """The facts about a run that the notes of a method may depend on."""

    values: Values  # every setting in force
    chosen: frozenset[str]  # the settings that the user gave
    preset: bool  # the settings in force are what a paper chose for this very data set
    everybody: bool  # everybody takes part in every round


class PublicFacts(NamedTuple):
    """The public sizes of a data set, by which a method may scale its defaults. Servers and nodes know them, in private
    runs too; the length of histories is not among them, because it is a fact about people."""

    people: int  # who learn
    items: int
    timed: bool  # whether the order of a history is known


Rule = Callable[[PublicFacts], Values]


@dataclass(frozen=True)
class PublicValues:
    """Public values that a run passes to every method that has a setting of the same name. They follow from the wire
    and the task, so `--set` does not accept them."""

    noise: float = 0.0  # standard deviation of the noise on a sum, as a multiple of the largest upload
    clip: float = 1.0  # largest norm of an upload
    people: int = 0  # how many people learn; 0 where there is no wire
    features: Tensor | None = None  # [items, columns], where the server is
    feature_count: int = 0  # columns of `features`, also where the table itself is not known
    learners: int = 0  # how many people learn, always
    cohort: int = 0  # people in a round, where the user gave a number or a share; 0: left to the method
    counts_once: bool = False  # everybody takes part in every round, so constant parts need to be sent only once

    def read_by(self, method: Callable[..., object]) -> dict[str, object]:
        """The values that this method has a setting for."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in settings_of(method)}


NEEDED = "A method is a function of a Model with keyword-only settings that returns a Method (docs/contributing.md)."
PUBLIC_NAMES = frozenset(f.name for f in fields(PublicValues))


@dataclass(eq=False)
class MethodSpec(Generic[P]):
    """A method's factory with what a run needs to know about it; callable like the factory, after a check of bounds."""

    factory: Callable[P, Method | Algorithm]
    defaults: Mapping[str, Values] = field(default_factory=dict)
    """Settings, rounds, tolerance and patience by task: ranking, ratings, regression, labels, pictures."""
    scaled: Mapping[str, Rule] = field(default_factory=dict)
    """Rules by task for defaults that depend on the size of the data. Their values replace those of `defaults`."""
    variants: Mapping[str, Values] = field(default_factory=dict)
    """Defaults (settings, rounds, tolerance and patience) that another setting changes, by "setting=value"."""
    presets: Mapping[tuple[str, str], Values] = field(default_factory=dict)
    """What a paper chose for a data set, by (task, data), and with data "" for all others: in force under the published
    protocol only, because its figures are what these settings were chosen for."""
    unread: Callable[[str, Values], dict[str, str]] = lambda task, values: {}
    """Settings that the method does not read on this task with these values, each with the reason."""
    notes: Callable[[RunContext], tuple[str, ...]] = lambda context: ()
    """What the user of a run should know."""
    search: Search = field(default_factory=dict)
    """The values of settings that `fedtaste tune` tries. Settings that a task does not have, or that would change
    nothing there, are left out."""

    own_name: str = ""
    """The name of a function outside fedtaste, "module:function": its errors are the user's to mend."""

    def preset(self, task: str, data: str) -> Values:
        """What a paper chose for all data and for this data set."""
        return {**self.presets.get((task, ""), {}), **self.presets.get((task, data), {})}

    def __post_init__(self) -> None:
        self.__wrapped__ = self.factory  # inspect.signature and doctest look through
        self.__doc__, self.__module__ = self.factory.__doc__, self.factory.__module__
        self.__name__ = getattr(self.factory, "__name__", "method")

    def __call__(self, *args: P.args, **settings: P.kwargs) -> Method:
        check_bounds(self.factory, settings)
        try:
            result = self.factory(*args, **settings)
            method: object = result if isinstance(result, Method) or not hasattr(result, "method") else result.method()
        except (Exception, SystemExit) as error:
            if isinstance(error, FedtasteError) or not self.own_name:
                raise
            raise SettingError(f"{self.own_name} raised {described(error)}. {NEEDED}") from error
        if not isinstance(method, Method):
            name = self.own_name or self.__name__
            raise SettingError(f"{name} must return a Method, got {type(method).__name__}. {NEEDED}")
        return method


def described(error: BaseException) -> str:
    """An error with the last line of code that it passed.

    >>> try:
    ...     [][0]
    ... except IndexError as error:
    ...     described(error)[:37]
    'IndexError: list index out of range ('
    """
    place = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")
    return f"{words} ({place.filename}, line {place.lineno})"


def define(
    *,
    defaults: Mapping[str, Values] | None = None,
    scaled: Mapping[str, Rule] | None = None,
    variants: Mapping[str, Values] | None = None,
    presets: Mapping[tuple[str, str], Values] | None = None,
    unread: Callable[[str, Values], dict[str, str]] = lambda task, values: {},
    notes: Callable[[RunContext], tuple[str, ...]] = lambda context: (),
    search: Search | None = None,
) -> Callable[[Callable[P, Method | Algorithm]], MethodSpec[P]]:
    """Decorator: make a MethodSpec of a function that returns a Method, or of a class that has `method()`."""
    return lambda factory: MethodSpec(
        factory, defaults or {}, scaled or {}, variants or {}, presets or {}, unread, notes, search or {}
    )
