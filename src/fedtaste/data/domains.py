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
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import is_table
from fedtaste.data.digits import load_handwritten
from fedtaste.data.images import ENDINGS, Pixels, channels_first, from_zero_to_one, read_image, resize
from fedtaste.data.interactions import Floats
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import stem
from fedtaste.errors import DataError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
PICKLED = ".pkl"
MOST_CLASSES = 10_000
Rows = NDArray[np.int64]


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
    numbers = vocabulary([label for parts in parts_of.values() for part in parts for label in set(part.labels)], folder)
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
    alone = [name for name, own in classes.items() if not any(own & other for n, other in classes.items() if n != name)]
    return [f"No other domain has a class of: {', '.join(alone)}."] if alone and len(classes) > 1 else []


def looks_like_domains(folder: Path) -> bool:
    """Whether a folder that is given by its path alone holds domains rather than a split of ratings."""
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
    return any(path.suffix.lower() in (*ENDINGS, PICKLED) for paths in depths for path in paths)


def domain_paths(folder: Path) -> dict[str, Path]:
    """The file or the folder of every domain, by name."""
    paths: dict[str, Path] = {}
    for path in list_folder(folder):
        if path.suffix.lower() == PICKLED:
            raise pickled(path)
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


def pickled(path: Path) -> DataError:
    return DataError(
        f"{path} is pickled. Such a file can run any program when it is opened, so fedtaste reads none. Open it with the "
        "code that it came with, if you trust it, join the parts of a domain, and save them: "
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
                raise pickled(Path(root) / file)
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
    files = [(entry.name, file) for entry in folders for file in list_folder(entry) if file.suffix.lower() in ENDINGS]
    if not files:
        raise DataError(
            f"{folder} has no images in folders of classes. Expected DOMAIN/CLASS/*.png, or DOMAIN/train/CLASS/*.png "
            f"and DOMAIN/test/CLASS/*.png; images end in {', '.join(ENDINGS)}."
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


def vocabulary(labels: list[str], folder: Path) -> dict[str, int]:
    """A number for every class over all domains: numbers stay, other names are numbered alphabetically."""
    names = sorted(set(labels))
    if not all(name.isascii() and name.isdigit() for name in names):
        return {name: number for number, name in enumerate(names)}
    largest = max(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    if len(largest) > 9 or int(largest) >= MOST_CLASSES:
        raise DataError(f"{folder} has a class {largest}. Expected classes below {MOST_CLASSES:,}; number them from 0.")
    return {name: int(name) for name in names}
