"""Convert images of any kind to arrays [n, 3, size, size] with values from 0 to 1."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.interactions import Floats
from fedtaste.data.supervised import shape_text
from fedtaste.errors import DataError

Pixels = NDArray[Any]  # of any number type
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")


def channels_first(images: Pixels, where: str) -> Pixels:
    """[n, h, w], [n, h, w, 1 or 3] or [n, 1 or 3, h, w] -> [n, 3, h, w]; grey is repeated."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
        raise DataError(
            f"{where} is an array of {shape_text(images.shape)}. Expected images: [n, height, width], or with 1 or 3 channels "
            "as the last axis or the second; reshape it before it is saved."
        )
    return np.repeat(images, 3, axis=1) if images.shape[1] == 1 else images


def from_zero_to_one(images: Pixels, where: str) -> Floats:
    """Whole numbers from 0 to 255 divided by 255; other numbers must be from 0 to 1 already."""
    whole = images.dtype.kind in "ui"
    top = 255 if whole else 1
    if images.dtype.kind not in "uifb":
        raise DataError(f"{where} holds {images.dtype}, not numbers. Expected bytes from 0 to 255 or numbers to 1.")
    if images.size and not (images.min() >= 0 and images.max() <= top):
        raise DataError(
            f"{where} has values from {images.min():g} to {images.max():g}. Expected whole numbers from 0 to 255, or "
            "others from 0 to 1; scale them before they are saved."
        )
    scaled: Floats = (images / np.float32(top)).astype(np.float32)
    return scaled


def resize(images: Floats, size: int) -> Floats:
    """[n, c, h, w] -> [n, c, size, size]; bilinear, and averaged over all pixels that a new one covers."""
    height, width = images.shape[2:]
    out: Floats = np.matmul(
        np.matmul(resampling_weights(height, size), images), resampling_weights(width, size).T, dtype=np.float32
    )
    return out


@lru_cache(maxsize=256)
def resampling_weights(old: int, new: int) -> Floats:
    """[new, old] weights of the old pixels in each new one: a triangle around its centre, rows sum to one.

    >>> (7 * resampling_weights(4, 2)).round().tolist()
    [[3.0, 3.0, 1.0, 0.0], [0.0, 1.0, 3.0, 3.0]]
    """
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(old) - centres[:, None]) / max(1.0, scale))
    normalised: Floats = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return normalised


def read_image(path: Path, size: int) -> Floats:
    """One file as [3, size, size]."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            if opened.mode.startswith(("I", "F")):
                raise DataError(f"{path} has more than 8 bits for a pixel ({opened.mode}). Save it with 8 bits.")
            pixels = opened.convert("RGBA") if "transparency" in opened.info else opened
            image = np.asarray(pixels.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}). Replace it, or remove it.") from error
    out: Floats = resize(from_zero_to_one(channels_first(image[None], str(path)), str(path)), size)[0]
    return out
