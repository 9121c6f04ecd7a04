"""Read a folder of image domains: the same classes in images of different kinds, one kind at each client.

Digits-5 (MNIST, SVHN, USPS, SynthDigits, MNIST-M), on which LG-Mix (ICLR 2024) and FedBN (ICLR 2021) are measured,
Office-Caltech and DomainNet are such data. None may be shipped; the user's folder holds, for each domain,

    NAME.npz                     with x_train, y_train, x_test, y_test
    NAME/train/CLASS/*.png       and NAME/test/CLASS/*.png
    NAME/CLASS/*.png             of which a fifth of each class is held out for testing

All images are resized to one size and three channels from 0 to 1. FedBN's release stores pickles, which can run any
program when they are opened: they are refused, with instructions for saving them as .npz.
"""

from __future__ import annotations

import itertools
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.digits import load_handwritten
from fedtaste.data.formats import is_table, stem
from fedtaste.data.interactions import Floats
from fedtaste.data.supervised import Supervised, shape_text
from fedtaste.errors import DataError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
PICKLED = ".pkl"
MOST_CLASSES = 10_000
Rows = NDArray[np.int64]
Pixels = NDArray[Any]  # of any number type
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, eq=False)
class Part:
    """Training or test images, which are read only when they are chosen."""

    labels: list[str]
    read: Callable[[Rows], Floats]  # rows -> [n, 3, size, size]


def domains(
    folder: Path,
    *,
    size: int = 16,
    examples: int | None = None,
    tests: int = 1000,
    optdigits: bool = False,
    seed: int = 0,
) -> Supervised:
    """The domains of a folder, in the order of their names, with `examples` (or all) for training and `tests` at most.

    The seed chooses which examples are left out. `optdigits` adds scikit-learn's 8 x 8 digits as one more domain.
    """
    if not 1 <= size <= 512 or tests < 1 or (examples is not None and examples < 1):
        raise DataError(
            "size must be from 1 to 512, examples and tests at least 1, got "
            f"size={size}, examples={'all' if examples is None else examples}, tests={tests}."
        )
    parts_of = {name: open_domain(path, size, seed) for name, path in domain_paths(folder).items()}
    if optdigits:
        parts_of["optdigits"] = split_digits(size, seed)
    labels = [label for parts in parts_of.values() for part in parts for label in set(part.labels)]
    numbers = class_numbers(labels, folder)
    chosen: list[tuple[Floats, Floats]] = []
    for place, parts in enumerate(parts_of.values()):
        rng = np.random.default_rng((seed, place))
        for part, limit in zip(parts, (examples, tests)):
            rows = rng.permutation(len(part.labels))[:limit]
            chosen.append((part.read(rows), np.array([numbers[part.labels[row]] for row in rows], np.float32)))
    return Supervised(
        name=folder.resolve().name,
        task="labels",
        features=tuple(x for x, _ in chosen[::2]),
        targets=tuple(y for _, y in chosen[::2]),
        test_features=tuple(x for x, _ in chosen[1::2]),
        test_targets=tuple(y for _, y in chosen[1::2]),
        notes=(f"Every image was resized to 3 x {size} x {size}, from 0 to 1.", *_unshared(parts_of)),
        clients=tuple(parts_of),
        classes=max(numbers.values()) + 1,
    )


def _unshared(parts_of: dict[str, tuple[Part, Part]]) -> list[str]:
    """A note on domains that share no class with another one."""
    classes = {name: {label for part in parts for label in part.labels} for name, parts in parts_of.items()}
    isolated = [
        name for name, own in classes.items() if not any(own & other for n, other in classes.items() if n != name)
    ]
    return [f"No other domain has a class of: {', '.join(isolated)}."] if isolated and len(classes) > 1 else []


def looks_like_domains(folder: Path) -> bool:
    """Whether a folder holds image domains, and not a split of ratings, where the user names its path only."""
    try:
        entries = list_folder(folder)
    except DataError:
        return False
    if any(is_table(path) and stem(path).lower() in ("train", "test") for path in entries):
        return False
    return any(path.suffix.lower() == ".npz" or path.is_dir() and _holds_images(path) for path in entries)


def _holds_images(folder: Path) -> bool:
    """Whether there are images or pickles among the first files of a folder and of the folders in it."""
    depths = (itertools.islice(folder.glob(depth), 101) for depth in ("*", "*/*", "*/*/*"))
    return any(path.suffix.lower() in (*IMAGE_ENDINGS, PICKLED) for paths in depths for path in paths)


def domain_paths(folder: Path) -> dict[str, Path]:
    """The file or the folder of every domain, by name."""
    paths: dict[str, Path] = {}
    for path in list_folder(folder):
        if path.suffix.lower() == PICKLED:
            raise pickle_error(path)
        if path.is_dir() or path.suffix.lower() == ".npz":
            name = path.name if path.is_dir() else path.stem
            if name in paths:
                raise DataError(f"{folder} has {name} as a folder and as {name}.npz. Expected one; remove the other.")
            paths[name] = path
    if not paths:
        names = ", ".join(path.name for path in list_folder(folder)[:10]) or "nothing"
        raise DataError(
            f"{folder} has no domains. It has: {names}. Expected one .npz file for each domain, or a folder for each "
            "with a folder of images for each class."
        )
    return paths


def list_folder(folder: Path) -> list[Path]:
    """The entries of a folder in the order of their names, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror or error}). Expected a folder of domains."
        ) from error


def pickle_error(path: Path) -> DataError:
    return DataError(
        f"{path} is pickled. Such a file can run any program when it is opened, so fedtaste reads none. Open it with "
        "the code that it came with, if you trust it, join the parts of a domain, and save them: "
        'np.savez("NAME.npz", x_train=..., y_train=..., x_test=..., y_test=...).'
    )


def open_domain(path: Path, size: int, seed: int) -> tuple[Part, Part]:
    """The training and the test part of a domain."""
    if not path.is_dir():
        arrays = read_arrays(path)
        return array_part(arrays, "train", path, size), array_part(arrays, "test", path, size)
    for root, _, files in os.walk(path):
        for file in sorted(files):
            if file.lower().endswith(PICKLED):
                raise pickle_error(Path(root) / file)
    inside = {entry.name.lower(): entry for entry in list_folder(path) if entry.is_dir()}
    if "train" in inside and "test" in inside:
        return image_part(image_files(inside["train"]), size), image_part(image_files(inside["test"]), size)
    images = image_files(inside.get("train", path))
    train, test = hold_out_fifth([label for label, _ in images], seed)
    return image_part([images[row] for row in train], size), image_part([images[row] for row in test], size)


def read_arrays(path: Path) -> dict[str, Pixels]:
    """The four arrays of an .npz file; pickled objects are refused."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as opened:  # close it even if it is damaged
            missing = [name for name in ARRAYS if name not in opened.files]
            if missing:
                raise DataError(
                    f"{path} has no {' and no '.join(missing)}. It has: {', '.join(opened.files) or 'nothing'}. "
                    f"Expected {', '.join(ARRAYS)}; save it again with np.savez and these names."
                )
            return {name: opened[name] for name in ARRAYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Expected an .npz file of plain arrays; save it again with np.savez."
        ) from error


def array_part(arrays: dict[str, Pixels], part: str, path: Path, size: int) -> Part:
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    where = f"{path}, x_{part}"
    numbers = labels.ndim == 1 and labels.dtype.kind in "uifb" and np.isfinite(labels).all()
    if not numbers or (labels != np.floor(labels)).any() or (labels < 0).any():
        raise DataError(f"{path}, y_{part}: expected one whole number from 0 for each image. Save such labels.")
    if len(images) != len(labels):
        raise DataError(
            f"{path} has {len(images):,} images in x_{part} and {len(labels):,} labels in y_{part}. Expected as many; "
            "check that both come from the same rows."
        )
    pictures = channels_first(images, where)
    return Part(
        [str(int(label)) for label in labels], lambda rows: resize(from_zero_to_one(pictures[rows], where), size)
    )


def image_files(folder: Path) -> list[tuple[str, Path]]:
    """(class, file) of every image in the folders of the classes."""
    folders = [entry for entry in list_folder(folder) if entry.is_dir()]
    files = [
        (entry.name, file) for entry in folders for file in list_folder(entry) if file.suffix.lower() in IMAGE_ENDINGS
    ]
    if not files:
        raise DataError(
            f"{folder} has no images in folders of classes. Expected DOMAIN/CLASS/*.png, or DOMAIN/train/CLASS/*.png "
            f"and DOMAIN/test/CLASS/*.png; images end in {', '.join(IMAGE_ENDINGS)}."
        )
    return files


def image_part(files: list[tuple[str, Path]], size: int) -> Part:
    def read(rows: Rows) -> Floats:
        read_all = [read_image(files[row][1], size) for row in rows]
        return np.stack(read_all) if read_all else np.zeros((0, 3, size, size), np.float32)

    return Part([label for label, _ in files], read)


def split_digits(size: int, seed: int) -> tuple[Part, Part]:
    images, labels = load_handwritten()
    names = [str(label) for label in labels]

    def part(rows: Rows) -> Part:
        own = channels_first(images[rows], "optdigits")
        return Part([names[row] for row in rows], lambda chosen: resize(own[chosen], size))

    train, test = hold_out_fifth(names, seed)
    return part(train), part(test)


def hold_out_fifth(labels: list[str], seed: int) -> tuple[Rows, Rows]:
    """Rows for training and for testing: a fifth of each class, at least one where it has two."""
    rng = np.random.default_rng((seed, len(labels)))
    names, codes = np.unique(labels, return_inverse=True)
    test = np.zeros(len(labels), bool)
    for code in range(len(names)):
        rows = rng.permutation(np.flatnonzero(codes == code))
        test[rows[: min(len(rows) - 1, max(1, len(rows) // 5))]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def class_numbers(labels: list[str], folder: Path) -> dict[str, int]:
    """A number for every class over all domains: numbers stay, other names are numbered alphabetically."""
    names = sorted(set(labels))
    if not all(name.isascii() and name.isdigit() for name in names):
        return {name: number for number, name in enumerate(names)}
    largest = max(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    if len(largest) > 9 or int(largest) >= MOST_CLASSES:
        raise DataError(f"{folder} has a class {largest}. Expected classes below {MOST_CLASSES:,}; number them from 0.")
    return {name: int(name) for name in names}


def channels_first(images: Pixels, where: str) -> Pixels:
    """[n, h, w], [n, h, w, 1 or 3] or [n, 1 or 3, h, w] -> [n, 3, h, w]; grey is repeated."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
        raise DataError(
            f"{where} is an array of {shape_text(images.shape)}. Expected images: [n, height, width], or with 1 or 3 "
            "channels as the last axis or the second; reshape it before it is saved."
        )
    return np.repeat(images, 3, axis=1) if images.shape[1] == 1 else images


def from_zero_to_one(images: Pixels, where: str) -> Floats:
    """Whole numbers from 0 to 255 divided by 255; other numbers must be from 0 to 1 already."""
    top = 255 if images.dtype.kind in "ui" else 1
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
