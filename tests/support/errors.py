"""A check of an error by its type and the parts that its message must contain."""

from __future__ import annotations

import re

import pytest


def raises_with(kind: type[Exception], *parts: str):
    """Expect an error of this type whose message contains these parts in this order."""
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, parts)))
