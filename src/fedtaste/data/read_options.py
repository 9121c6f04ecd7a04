"""ReadOptions: which columns a user's table has, and how its numbers and dates are written.

The same options are keywords of `Interactions.from_frame`, fields of Settings and options of the command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedtaste.errors import SettingError
from fedtaste.text import did_you_mean

ROLES = ("user", "item", "rating", "time", "title", "genres", "group")
SEPARATORS = {"tab": "\t", "\\t": "\t"}  # as they can be typed


@dataclass(frozen=True)
class ReadOptions:
    """How a table is read. What is left out is detected: columns by their usual names, separators from the header.

    >>> ReadOptions({"user": "customer", "timestamp": "when"}, separator="tab").columns
    {'user': 'customer', 'time': 'when'}
    """

    columns: Mapping[str, str | None] = field(default_factory=dict)  # role -> its column; None: do not read one
    separator: str | None = None  # of a text file
    decimal: str = "."  # the decimal mark of numbers in text
    date_format: str | None = None  # of times in text, as in strftime
    drop_missing: bool = False  # leave rows with missing values out instead of refusing them
    max_gib: float | None = None  # the largest size of a compressed file after unpacking
    of_frame: bool = False  # the options are keywords of from_frame, and errors name them so

    def __post_init__(self) -> None:
        columns = {"time" if role == "timestamp" else role: column for role, column in self.columns.items()}
        for role in columns:
            if role not in ROLES:
                raise SettingError(f"--columns: {did_you_mean(role, ROLES, 'kind of column')}")
        for role in ("user", "item"):
            if role in columns and not columns[role]:
                raise SettingError(f"{role} must be the name of a column, got {columns[role]!r}.")
        separator = SEPARATORS.get(self.separator or "", self.separator)
        if separator is not None and len(separator.encode()) != 1:
            raise SettingError(f'The separator must be one character such as ";" or tab, got "{separator}".')
        if self.decimal not in (".", ","):
            raise SettingError(f'The decimal mark must be "." or ",", got "{self.decimal}".')
        if self.date_format is not None and "%" not in self.date_format:
            raise SettingError(f'The date format must be such as %d/%m/%Y, got "{self.date_format}".')
        if self.max_gib is not None and not self.max_gib > 0:
            raise SettingError(f"The largest size in GiB must be above 0, got {self.max_gib}.")
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "separator", separator)

    def names(self, role: str) -> bool:
        """Whether the column of this role is given, or given as None."""
        return user_role(role) in self.columns

    def column(self, role: str) -> str | None:
        """The column that is given for this role."""
        return self.columns.get(user_role(role))

    def use_column(self, role: str, column: str) -> str:
        """How to name a column, for errors: `--columns user=customer_id` or `user="customer_id"`. The option is
        repeated with the columns that it already names."""
        columns = {name: given for name, given in self.columns.items() if given is not None} | {user_role(role): column}
        words = ",".join(f"{name}={given}" for name, given in columns.items())
        return f'{user_role(role)}="{column}"' if self.of_frame else f"--columns {shlex.quote(words)}"

    def use(self, name: str, value: str | None = None) -> str:
        """How to set another option, for errors: `--decimal ,` or `decimal=","`; without a value, a flag."""
        if self.of_frame:
            return f"{name}=True" if value is None else f'{name}="{value}"'
        option = f"--{name.replace('_', '-')}"
        return option if value is None else f"{option} {shlex.quote(value)}"


def user_role(role: str) -> str:
    """The role as users write it: `time` for our `timestamp`."""
    return "time" if role == "timestamp" else role


DEFAULTS = ReadOptions()
