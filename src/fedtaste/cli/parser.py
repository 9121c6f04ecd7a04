"""Build click commands from pydantic models: one option per field, with its type, bounds, help and default.

A field is an option of the same name (`new_people` is --new-people); `Cli` beside its type changes that. click splits
the command line into words; pydantic converts and checks the values, whether they come from the command line or from a
TOML file (--config), and every refusal is a SettingError that names the option, or the file and the key.
"""

from __future__ import annotations

import importlib
import tomllib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedtaste.errors import SettingError
from fedtaste.experiment.settings import Cli, Settings
from fedtaste.result_part import JsonObject
from fedtaste.text import did_you_mean, unreadable

CONFIG_HELP = (
    "Read options from a TOML file, for example: rounds = 8. Keys are option names with underscores (new_people); "
    "settings of the method stand in a table [set]. Options on the command line win. The `settings` of a run folder's "
    "settings.json have the same names and can be copied into such a file."
)
BOUNDS = (Ge, Gt, Le, Lt)


@dataclass(frozen=True)
class Command:
    """One command: the function that runs it, the model of its own options, and the settings that it accepts."""

    function: str  # "module:function" below fedtaste.cli; imported when the command is called
    options: type[BaseModel]
    settings: tuple[str, ...] = ()


def load_function(name: str) -> Callable[..., None]:
    """Import the function of a command. All function-level imports of the command line go through here, so that help
    and wrong options do not wait for torch, only federations need Flower, and only tuning needs Optuna."""
    module, _, function = name.partition(":")
    if module == "federate":
        importlib.import_module("fedtaste.flower.processes").require_flower()
    if module == "tune":
        importlib.import_module("fedtaste.experiment.optuna_extra").require_optuna()
    loaded: Callable[..., None] = getattr(importlib.import_module(f"fedtaste.cli.{module}"), function)
    return loaded


def build_command(name: str, command: Command) -> click.Command:
    """The click command: options of the settings first, then its own; the help is the docstring of its options."""
    fields = _fields(command)
    params = [_parameter(field, info) for field, info in fields.items()]
    if command.settings:
        params.append(click.Option(["--config"], metavar="FILE", help=CONFIG_HELP))

    def call(**values: object) -> None:
        context = click.get_current_context()
        default = click.core.ParameterSource.DEFAULT
        typed = {n: v for n, v in values.items() if context.get_parameter_source(n) is not default}
        load_function(command.function)(*read_models(command, typed))

    return click.Command(name, params=params, callback=call, help=command.options.__doc__)


def read_models(command: Command, typed: Mapping[str, object]) -> list[BaseModel]:
    """The settings, where the command accepts any, and its own options: from the values that were typed on the command
    line and those of the --config file."""
    fields = _fields(command)
    path = typed.get("config")
    config = {} if path is None else read_config(Path(str(path)), fields)
    for name, value in typed.items():
        if isinstance(value, str) and not value.strip() and name != "config":
            option = option_name(name, fields[name])
            raise SettingError(f"{option} is empty. Give it a value, or leave {option} out.")
    values = config | {name: _split(fields[name], value) for name, value in typed.items() if name != "config"}
    for name, value in config.items():
        if isinstance(value, dict) and name in typed:  # a table: single keys are overridden
            values[name] = value | values[name]
    models: list[tuple[type[BaseModel], Iterable[str]]] = [(command.options, command.options.model_fields)]
    if command.settings:
        models.insert(0, (Settings, command.settings))
    try:
        return [model(**{name: values[name] for name in names if name in values}) for model, names in models]
    except ValidationError as error:
        raise _refusal(error, fields, None if str(error.errors()[0]["loc"][0]) in typed else path) from None


def read_config(path: Path, fields: Mapping[str, FieldInfo]) -> JsonObject:
    """Options from a TOML file, by field. Unknown keys are refused."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {path} cannot be read: {unreadable(error)}. Give a TOML file in UTF-8.") from None
    except ValueError as error:
        raise SettingError(f"--config {path} is not valid TOML: {error}.") from None
    by_key = {_key(name, info): name for name, info in fields.items()}
    for key, value in content.items():
        if key not in by_key:
            raise SettingError(f"{path}: {did_you_mean(key, by_key, 'option')}")
        info = fields[by_key[key]]
        if isinstance(value, bool) and bool not in _types(info.annotation):  # Python would count true as 1
            raise SettingError(f"{path}: {key} must be {expectation(info)}, got {str(value).lower()}.")
        if isinstance(value, dict):
            # values of a [set] table as --set spells them
            content[key] = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in value.items()}
    return {by_key[key]: _split(fields[by_key[key]], value) for key, value in content.items()}


def option_name(name: str, info: FieldInfo) -> str:
    """The long name of a field's option, such as --new-people."""
    names = _cli(info).names
    return names[-1] if names else f"--{name.replace('_', '-')}"


def option_words(values: BaseModel, names: Iterable[str], always: Collection[str] = ()) -> list[str]:
    """The words of a command line that give these fields the values of a model. Defaults are left out, except for the
    fields of `always`."""
    words: list[str] = []
    for name in names:
        info, value = type(values).model_fields[name], getattr(values, name)
        if value == info.default and name not in always:
            continue
        option = option_name(name, info)
        parts = ["=".join(pair) for pair in value.items()] if isinstance(value, dict) else [str(value)]
        if isinstance(value, bool):
            words += [option]
        elif _cli(info).commas:
            words += [option, ",".join(parts)]
        else:
            words += [word for part in parts for word in (option, part)]
    return words


def expectation(info: FieldInfo) -> str:
    """What a value of this field must be, such as "a whole number from 0 to 10" or "a number above 0, or none"."""
    marks = [*info.metadata, *(mark for _, metadata in _walk(info.annotation) for mark in metadata)]
    bounds = {type(mark): getattr(mark, type(mark).__name__.lower()) for mark in marks if isinstance(mark, BOUNDS)}
    if Ge in bounds and bounds.keys() & {Le, Lt}:
        limits = f"from {bounds[Ge]} to {bounds[Le] if Le in bounds else f'below {bounds[Lt]}'}"
    else:
        words = {Ge: "of at least", Gt: "above", Le: "of at most", Lt: "below"}
        limits = " and ".join(f"{words[kind]} {bound}" for kind, bound in bounds.items())
    names = {int: "a whole number", float: "a number", bool: "true or false", dict: "a table of settings"}
    kind = next((text for each, text in names.items() if each in _types(info.annotation)), "text")
    return ", or ".join([f"{kind} {limits}".strip(), *_choices(info.annotation)])


def _fields(command: Command) -> dict[str, FieldInfo]:
    """The fields behind a command's options: the settings that it accepts, and its own."""
    return {name: Settings.model_fields[name] for name in command.settings} | command.options.model_fields


def _parameter(name: str, info: FieldInfo) -> click.Parameter:
    cli, kinds = _cli(info), _types(info.annotation)
    metavar = cli.metavar or _metavar(info, kinds)
    if cli.argument:
        return click.Argument([name], metavar=metavar, required=info.is_required())
    flag, repeatable = bool in kinds, bool(kinds & {tuple, dict}) and not cli.commas
    text = " ".join((info.description or "").split())
    if repeatable:
        text += " Repeatable."
    elif str(info.default) not in ("None", "False", "", "()", "{}"):
        text += f" [default: {info.default}]"
    return click.Option(
        [*(cli.names or [option_name(name, info)]), name], help=text, is_flag=flag, hidden=cli.hidden,
        multiple=repeatable, metavar=None if flag else metavar, flag_value=cli.alone or None,
    )  # fmt: skip


def _metavar(info: FieldInfo, kinds: set[object]) -> str:
    choices = _choices(info.annotation)
    names = {dict: "KEY=VALUE", Path: "PATH", float: "NUMBER", int: "INTEGER", str: "TEXT"}
    words = [text for kind, text in names.items() if kind in kinds][:1] + choices
    return f"[{'|'.join(words)}]" if choices else "".join(words)


def _key(name: str, info: FieldInfo) -> str:
    """The key of a field in a --config file."""
    return option_name(name, info).lstrip("-").replace("-", "_")


def _cli(info: FieldInfo) -> Cli:
    return next((part for part in info.metadata if isinstance(part, Cli)), Cli())


def _split(info: FieldInfo, value: object) -> Any:
    """Words of the command line as the field's container: `a,b` as two names, `k=8` as one setting."""
    kinds, pairs = _types(info.annotation), _cli(info).example
    if _cli(info).commas and isinstance(value, str | int | float):
        value, pairs = tuple(part.strip() for part in str(value).split(",") if part.strip()), "--columns user=customer"
    if dict in kinds and isinstance(value, tuple):
        return _pairs(pairs, value)
    return value


def _pairs(example: str, words: Iterable[str]) -> dict[str, str]:
    """Words such as k=8 as settings; a key that is given twice is refused."""
    pairs: dict[str, str] = {}
    for key, value in (_pair(example, word) for word in words):
        if key in pairs:
            given = f"{key}={pairs[key]} and {key}={value}"
            raise SettingError(f"{example.split()[0]} gives {key} twice: {given}. Keep one.")
        pairs[key] = value
    return pairs


def _pair(example: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not (key and equals and value):
        raise SettingError(f'{example.split()[0]} must be key=value, as in {example}, got "{word}".')
    return key.strip(), value.strip()


def _refusal(error: ValidationError, fields: Mapping[str, FieldInfo], file: object) -> SettingError:
    """The first problem in words. `file`: the --config file that the value came from, if it did."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    info, value = fields[name], first["input"]
    where, label = (f"{file}: ", _key(name, info)) if file else ("", option_name(name, info))
    if first["type"] == "literal_error" and not _types(info.annotation) & {int, float}:
        return SettingError(where + did_you_mean(str(value), _choices(info.annotation), name.replace("_", " ")))
    if first["type"] == "value_error":
        return SettingError(f"{where}{label} {first['ctx']['error']}, got {value}.")
    return SettingError(f"{where}{label} must be {expectation(info)}, got {value}.")


def _walk(annotation: object) -> Iterator[tuple[object, tuple[object, ...]]]:
    """(type, metadata) of every part of an annotation such as `Annotated[int, Ge(0)] | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        yield None, tuple(metadata)
        yield from _walk(inner)
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _walk(part)
    elif origin is tuple:
        yield tuple, ()
        yield from _walk(get_args(annotation)[0])
    elif origin is not Literal:
        yield origin or annotation, ()


def _types(annotation: object) -> set[object]:
    return {kind for kind, _ in _walk(annotation)}


def _choices(annotation: object) -> list[str]:
    """The words of a Literal anywhere in an annotation."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _choices(part)]
