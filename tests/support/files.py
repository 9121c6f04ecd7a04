"""Archives in memory and a comparison of data sets, for the tests of data."""

from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np

from fedtaste.data.interactions import Interactions


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zip_of(files: dict[str, bytes]) -> bytes:
    """A zip archive with these files. The same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def same_interactions(a: Interactions, b: Interactions) -> bool:
    """Whether two data sets are equal in everything but their names."""
    for key in ("person", "item", "value", "time"):
        first, second = getattr(a, key), getattr(b, key)
        if first is None or second is None:
            if first is not second:
                return False
        elif first.dtype != second.dtype or not np.array_equal(first, second):
            return False
    return all(getattr(a, key) == getattr(b, key) for key in ("people", "items", "titles", "genres"))
