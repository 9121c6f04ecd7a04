"""Polars, imported when it is first used: a node of a federation and a run on generated data read no tables, and would
spend a third of a second on it in every process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["pl"]

if TYPE_CHECKING:
    import polars as pl
else:

    class _LazyModule:
        def __getattr__(self, name: str) -> object:
            return getattr(importlib.import_module("polars"), name)

    pl = _LazyModule()
