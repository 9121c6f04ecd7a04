"""A folder of domains: the same classes in pictures of different kinds, one kind at each client.

So are Digits-5 (MNIST, SVHN, USPS, SynthDigits, MNIST-M), on which LG-Mix (ICLR 2024) and FedBN (ICLR 2021) are
measured, Office-Caltech and DomainNet. None may be shipped; a folder of one's own holds, for each domain,

    NAME.npz                     with x_train, y_train, x_test, y_test
    NAME/train/CLASS/*.png       and NAME/test/CLASS/*.png
    NAME/CLASS/*.png             of which a fifth of each class is held out for testing

All domains are brought to one size and three channels from 0 to 1. FedBN's release stores pickles, which can run any
program when they are opened: they are refused, with how to save them as .npz.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .digits import handwritten
from .images import ENDINGS, channels_first, from_zero_to_one, read_image, resized
from .importing import stem
from .interactions import Floats
from .supervised import Supervised
from .tables import is_table

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
PICKLED = ".pkl"
MOST_CLASSES = 10_000
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Training or test pictures that are opened only when they are chosen."""

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
    """The domains of a folder, in the order of their names: `examples` (or all) to learn from, at most `tests` to test.

    What is left out is chosen by the seed. `optdigits` adds scikit-learn's 8 x 8 digits as one more domain.
    """
    if not 1 <= size <= 512 or tests < 1 or (examples is not None and examples < 1):
        raise DataError(
            f"domains with size={size}, examples={'all' if examples is None else examples}, tests={tests} cannot be "
            "made. Expected a size from 1 to 512, and at least 1 example and 1 test."
        )
    found = {name: open_domain(path, size, seed) for name, path in places(folder).items()}
    if optdigits:
        found["optdigits"] = split_digits(size, seed)
    numbers = vocabulary([label for parts in found.values() for part in parts for label in set(part.labels)], folder)
    chosen: list[tuple[Floats, Floats]] = []
    for place, parts in enumerate(found.values()):
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
        notes=(f"Every image was brought to 3 x {size} x {size}, from 0 to 1.", *strangers(found)),
        clients=tuple(found),
        classes=max(numbers.values()) + 1,
    )


def strangers(found: dict[str, tuple[Part, Part]]) -> list[str]:
    """Domains are learnt together for the sake of classes that they share; that one shares none is worth saying."""
    held = {name: {label for part in parts for label in part.labels} for name, parts in found.items()}
    alone = [name for name, own in held.items() if not any(own & other for n, other in held.items() if n != name)]
    return [f"No other domain has a class of: {', '.join(alone)}."] if alone and len(held) > 1 else []


def looks_like_domains(folder: Path) -> bool:
    """Whether a folder that is given by its path alone holds domains rather than a split of ratings."""
    try:
        entries = listed(folder)
    except DataError:
        return False
    if any(is_table(path) and stem(path).lower() in ("train", "test") for path in entries):
        return False
    inside = [path for path in entries if path.is_dir()]
    return any(path.suffix.lower() == ".npz" for path in entries) or any(
        endings(path) & {*ENDINGS, PICKLED} for path in inside
    )


def endings(folder: Path) -> set[str]:
    """How the files of a folder and of the first folders in it end; enough to tell what it is for."""
    found: set[str] = set()
    for depth in ("*", "*/*", "*/*/*"):
        for number, path in enumerate(folder.glob(depth)):
            found.add(path.suffix.lower())
            if number > 100:
                break
    return found


def places(folder: Path) -> dict[str, Path]:
    """The file or the folder of every domain, by name."""
    found: dict[str, Path] = {}
    for path in listed(folder):
        if path.suffix.lower() == PICKLED:
            raise refused(path)
        if path.is_dir() or path.suffix.lower() == ".npz":
            name = path.name if path.is_dir() else path.stem
            if name in found:
                raise DataError(f"{folder} has {name} as a folder and as {name}.npz. Expected one; remove the other.")
            found[name] = path
    if not found:
        names = ", ".join(path.name for path in listed(folder)[:10]) or "nothing"
        raise DataError(
            f"{folder} has no domains. It has: {names}. Expected one .npz file for each domain, or a folder for each "
            "with a folder of images for each class."
        )
    return found


def listed(folder: Path) -> list[Path]:
    """What a folder holds, without hidden files, in the order of names."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror or error}). Expected a folder of domains."
        ) from error


def refused(path: Path) -> DataError:
    return DataError(
        f"{path} is pickled. Such a file can run any program when it is opened, so tacit reads none. Open it with the "
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
                raise refused(Path(root) / file)
    inside = {entry.name.lower(): entry for entry in listed(path) if entry.is_dir()}
    if "train" in inside and "test" in inside:
        return image_part(image_files(inside["train"]), size), image_part(image_files(inside["test"]), size)
    images = image_files(inside.get("train", path))
    train, test = held_out([label for label, _ in images], seed)
    return image_part([images[row] for row in train], size), image_part([images[row] for row in test], size)


def read_arrays(path: Path) -> dict[str, NDArray]:
    """The four arrays of an .npz file; nothing that is pickled."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as opened:  # closed, even if it is damaged
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


def array_part(arrays: dict[str, NDArray], part: str, path: Path, size: int) -> Part:
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
        [str(int(label)) for label in labels], lambda rows: resized(from_zero_to_one(pictures[rows], where), size)
    )


def image_files(folder: Path) -> list[tuple[str, Path]]:
    """(class, file) of every image in the folders of the classes."""
    found = [
        (inside.name, file)
        for inside in listed(folder)
        if inside.is_dir()
        for file in listed(inside)
        if file.suffix.lower() in ENDINGS
    ]
    if not found:
        raise DataError(
            f"{folder} has no images in folders of classes. Expected DOMAIN/CLASS/*.png, or DOMAIN/train/CLASS/*.png "
            f"and DOMAIN/test/CLASS/*.png; images end in {', '.join(ENDINGS)}."
        )
    return found


def image_part(files: list[tuple[str, Path]], size: int) -> Part:
    def read(rows: Rows) -> Floats:
        read_all = [read_image(files[row][1], size) for row in rows]
        return np.stack(read_all) if read_all else np.zeros((0, 3, size, size), np.float32)

    return Part([label for label, _ in files], read)


def split_digits(size: int, seed: int) -> tuple[Part, Part]:
    images, labels = handwritten()
    names = [str(label) for label in labels]

    def part(rows: Rows) -> Part:
        own = channels_first(images[rows], "optdigits")
        return Part([names[row] for row in rows], lambda chosen: resized(own[chosen], size))

    train, test = held_out(names, seed)
    return part(train), part(test)


def held_out(labels: list[str], seed: int) -> tuple[Rows, Rows]:
    """Rows for training and for testing: a fifth of each class, at least one where it has two."""
    rng = np.random.default_rng((seed, len(labels)))
    names, codes = np.unique(labels, return_inverse=True)
    test = np.zeros(len(labels), bool)
    for code in range(len(names)):
        rows = rng.permutation(np.flatnonzero(codes == code))
        test[rows[: min(len(rows) - 1, max(1, len(rows) // 5))]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def vocabulary(labels: list[str], folder: Path) -> dict[str, int]:
    """Numbers as they are; other names in the order of their letters, over all domains."""
    names = sorted(set(labels))
    if not all(name.isascii() and name.isdigit() for name in names):
        return {name: number for number, name in enumerate(names)}
    largest = max(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    if len(largest) > 9 or int(largest) >= MOST_CLASSES:
        raise DataError(f"{folder} has a class {largest}. Expected classes below {MOST_CLASSES:,}; number them from 0.")
    return {name: int(name) for name in names}
