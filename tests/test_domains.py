"""Folders of domains: arrays, folders of images, and errors about wrong ones."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtaste.data.digits import load_handwritten
from fedtaste.data.domains import domains, resampling_weights, resize
from fedtaste.data.sources import load, split_path
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import DataError
from support.errors import raises_with

REAL = Path(__file__).parents[1].parent / "shared" / "data" / "digits"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/digits, which is not part of the project")


refuses = partial(raises_with, DataError)


def save(path: Path, n: int = 30, shape: tuple[int, ...] = (8, 8), seed: int = 0, **changes) -> dict[str, np.ndarray]:
    """Save a domain of three classes; the first pixel of an image encodes its class."""
    rng = np.random.default_rng(seed)
    content: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        labels = np.arange(n) % 3
        images = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        images[:, 0, 0] = (labels * 100).reshape(-1, *[1] * (len(shape) - 2))
        content |= {f"x_{part}": images, f"y_{part}": labels}
    content |= changes
    np.savez(path, **content)
    return content


def paint(folder: Path, n: int, value: int, mode: str = "L", size: tuple[int, int] = (6, 4)) -> None:
    """Save n images of one colour."""
    folder.mkdir(parents=True)
    for number in range(n):
        colour = value if mode in ("L", "P", "I;16") else (value, number, 0, 255)[: len(mode)]
        Image.new(mode, size, colour).save(folder / f"{number}.png")


# Sizes


def test_resampling_weights_sum_to_one_and_are_the_identity_for_the_same_size():
    for old, new in ((28, 16), (8, 16), (16, 16), (5, 3), (1, 4), (7, 1)):
        weights = resampling_weights(old, new)
        assert weights.shape == (new, old) and (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)  # symmetric
    assert np.array_equal(resampling_weights(16, 16), np.eye(16))


def test_resizing_equals_that_of_pillow():
    image = np.random.default_rng(0).uniform(size=(28, 20)).astype(np.float32)
    for size in (16, 32):
        expected = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(resize(image[None, None], size)[0, 0], expected, atol=1e-5)


# Arrays


def test_arrays_of_all_layouts_are_read_alike(tmp_path):
    shapes = {"grey": (8, 8), "last": (8, 8, 3), "one": (8, 8, 1), "wide": (8, 16)}
    saved = {name: save(tmp_path / f"{name}.npz", shape=shape) for name, shape in shapes.items()}
    colour = {f"x_{part}": saved["last"][f"x_{part}"].transpose(0, 3, 1, 2) for part in ("train", "test")}
    save(tmp_path / "second.npz", **colour)
    save(tmp_path / "shares.npz", **{name: x / 255 for name, x in saved["grey"].items() if name[0] == "x"})
    data = domains(tmp_path, size=8)
    assert data.clients == ("grey", "last", "one", "second", "shares", "wide") and data.classes == 3
    assert data.shape == (3, 8, 8) and [len(y) for y in data.targets] == [30] * 6
    assert sorted(x.tobytes() for x in data.features[1]) == sorted(x.tobytes() for x in data.features[3])
    for client in (0, 1, 2, 3, 4):
        for x, y in ((data.features, data.targets), (data.test_features, data.test_targets)):
            np.testing.assert_allclose(x[client][:, 0, 0, 0] * 255, y[client] * 100, atol=1e-4)
    assert (data.features[0] == data.features[0][:, :1]).all()
    pixels = np.sort(data.features[0][:, 0].reshape(30, -1), 0)
    np.testing.assert_allclose(pixels, np.sort(saved["grey"]["x_train"].reshape(30, -1) / 255, 0), atol=1e-6)


def test_examples_and_tests_are_limited_by_a_seeded_choice(tmp_path):
    save(tmp_path / "one.npz")
    save(tmp_path / "two.npz", seed=1)
    few, again, other = (domains(tmp_path, examples=10, tests=7, seed=seed) for seed in (0, 0, 1))
    assert [len(y) for y in few.targets] == [10, 10] and [len(y) for y in few.test_targets] == [7, 7]
    assert few.features[0].tobytes() == again.features[0].tobytes() != other.features[0].tobytes()
    everything = {x.tobytes() for x in domains(tmp_path).features[0]}
    assert {x.tobytes() for x in few.features[0]} < everything and len(everything) == 30


def test_optdigits_can_be_one_more_domain(tmp_path):
    save(tmp_path / "one.npz")
    data = domains(tmp_path, size=8, tests=400, optdigits=True)
    assert data.clients == ("one", "optdigits") and data.classes == 10
    images = [x[0].tobytes() for part in (data.features[1], data.test_features[1]) for x in part]
    assert sorted(images) == sorted(image.tobytes() for image in load_handwritten()[0])
    assert set(np.bincount(data.test_targets[1].astype(int))) <= {34, 35, 36}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"x_test": np.zeros((29, 8, 8), np.uint8)}, ["one.npz has 29 images in x_test and 30 labels", "same rows"]),
        ({"x_train": np.zeros((30, 64), np.uint8)}, ["x_train is an array of 30 x 64", "reshape"]),
        ({"x_train": np.zeros((30, 4, 8, 8), np.uint8)}, ["x_train is an array of 30 x 4 x 8 x 8"]),
        ({"x_train": np.full((30, 8, 8), 2.0)}, ["x_train has values from 2 to 2", "from 0 to 1", "scale"]),
        ({"x_train": np.full((30, 8, 8), np.nan)}, ["x_train has values from nan"]),
        ({"x_train": np.full((30, 8, 8), 256)}, ["x_train has values from 256 to 256", "0 to 255"]),
        ({"x_train": np.full((30, 8, 8), "a")}, ["x_train holds <U1, not numbers"]),
        ({"y_train": np.arange(30) - 1}, ["y_train: expected one whole number"]),
        ({"y_train": np.full(30, np.inf)}, ["y_train: expected one whole number"]),
        ({"y_train": np.eye(30)}, ["y_train: expected one whole number"]),
        ({"y_train": np.full(30, 10**12)}, ["a class 1000000000000", "below 10,000"]),
        ({"y_train": np.array([None] * 30)}, ["one.npz cannot be read", "np.savez"]),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, changes, parts):
    save(tmp_path / "one.npz", **changes)
    with refuses(*parts):
        domains(tmp_path)


def test_files_that_are_not_npz_are_refused(tmp_path):
    np.savez(tmp_path / "one.npz", x_train=np.zeros(3), y=np.zeros(3))
    with refuses("one.npz has no y_train and no x_test and no y_test", "It has: x_train, y", "Expected x_train"):
        domains(tmp_path)
    good = tmp_path / "good.npz"
    save(good)
    with open(tmp_path / "array", "wb") as file:
        np.save(file, np.zeros(3))
    for content in (b"", b"text", good.read_bytes()[:200], (tmp_path / "array").read_bytes()):
        (tmp_path / "one.npz").write_bytes(content)
        with refuses("one.npz cannot be read", "np.savez"):
            domains(tmp_path)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 10_000}, {"examples": 0}, {"tests": 0}])
def test_wrong_sizes_are_refused(tmp_path, wrong):
    save(tmp_path / "one.npz")
    with refuses("from 1 to 512", "got size="):
        domains(tmp_path, **wrong)


# Folders of images


def test_image_folders_with_and_without_a_test_part_are_read(tmp_path):
    for place, name in enumerate(("cat", "dog")):
        paint(tmp_path / "photo" / "train" / name, 6, 50 + place, "RGB")
        paint(tmp_path / "photo" / "test" / name, 2, 70 + place, "RGB")
        paint(tmp_path / "sketch" / name, 10, 10 + place, size=(20 + place, 9))  # of two sizes
    data = load(str(tmp_path))
    assert isinstance(data, Supervised) and data.clients == ("photo", "sketch") and data.classes == 2
    assert [len(y) for y in data.targets] == [12, 16] and [len(y) for y in data.test_targets] == [4, 4]
    assert data.shape == (3, 16, 16)
    for client, offsets in enumerate(((50, 70), (10, 10))):
        parts = ((data.features, data.targets), (data.test_features, data.test_targets))
        for offset, (x, y) in zip(offsets, parts):
            np.testing.assert_allclose(x[client][:, 0].mean((1, 2)) * 255, offset + y[client], atol=1e-3)
    assert np.bincount(data.test_targets[1].astype(int)).tolist() == [2, 2]  # a fifth of each class


def test_folders_named_by_numbers_keep_these_labels(tmp_path):
    save(tmp_path / "arrays.npz")
    for number in (2, 10):
        paint(tmp_path / "images" / str(number), 5, number)
    data = domains(tmp_path)
    assert data.classes == 11 and set(data.targets[1].tolist()) == {2, 10}
    np.testing.assert_allclose(data.features[1][:, 0, 0, 0] * 255, data.targets[1], atol=1e-4)


def test_domains_that_share_no_class_are_noted(tmp_path):
    save(tmp_path / "arrays.npz")
    paint(tmp_path / "images" / "zero", 5, 1)
    paint(tmp_path / "images" / "one", 5, 1)
    assert "No other domain has a class of: arrays, images." in domains(tmp_path).notes


def test_images_of_every_mode_get_three_channels(tmp_path):
    for number, mode in enumerate(("L", "P", "RGB", "RGBA", "1", "LA")):
        colour = {"RGB": (9, 9, 9), "RGBA": (9, 9, 9, 99), "LA": (9, 99)}.get(mode, 1 if mode == "1" else 9)
        (tmp_path / "all" / str(number)).mkdir(parents=True)
        for copy in "ab":
            Image.new(mode, (5, 5), colour).save(tmp_path / "all" / str(number) / f"{copy}.png")
    (tmp_path / "all" / "0" / "notes.txt").write_text("not an image")
    Image.new("P", (5, 5), 3).save(tmp_path / "all" / "0" / "c.png", transparency=bytes([0, 9, 9, 9]))
    assert domains(tmp_path, size=5).shape == (3, 5, 5)


def test_images_that_cannot_be_read_are_refused(tmp_path):
    paint(tmp_path / "one" / "0", 3, 1)
    paint(tmp_path / "one" / "1", 3, 1)
    broken = tmp_path / "one" / "1" / "3.png"
    image = (tmp_path / "one" / "1" / "0.png").read_bytes()
    for content in (b"", b"text", image[:40]):
        broken.write_bytes(content)
        with refuses("3.png cannot be read as an image", "Replace it"):
            domains(tmp_path)
    Image.new("I;16", (4, 4), 60_000).save(broken)
    with refuses("3.png has more than 8 bits", "8 bits"):
        domains(tmp_path)


def test_pickles_are_refused(tmp_path):
    for name in ("MNIST", "SVHN"):
        (tmp_path / name / "partitions").mkdir(parents=True)
        (tmp_path / name / "partitions" / "train_part0.pkl").write_bytes(b"\x80\x04.")
    with refuses("train_part0.pkl is pickled", "fedtaste reads none", "np.savez"):
        load(str(tmp_path))
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "mnist.PKL").write_bytes(b"")
    with refuses("mnist.PKL is pickled"):
        load(f"domains:{tmp_path / 'loose'}")


def test_folders_without_domains_are_refused(tmp_path):
    with refuses("has no domains. It has: nothing", "one .npz file for each domain"):
        domains(tmp_path)
    with refuses("has no train.csv"):  # an empty folder is read as a split
        load(str(tmp_path))
    (tmp_path / "one" / "train").mkdir(parents=True)
    with refuses("train has no images in folders of classes", "DOMAIN/CLASS"):
        domains(tmp_path)
    (tmp_path / "one.npz").touch()
    with refuses("has one as a folder and as one.npz", "remove the other"):
        domains(tmp_path)


def test_a_single_class_is_refused(tmp_path):
    paint(tmp_path / "one" / "cat", 5, 1)
    with refuses("labels of 1 classes", "at least 2"):
        domains(tmp_path)


def test_a_split_folder_with_an_array_file_is_read_as_a_split(tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text("user,item\na,x\nb,y\n")
    save(tmp_path / "one.npz")
    assert isinstance(load(str(tmp_path)), UserSplit)


def test_paths_may_contain_commas_and_colons(tmp_path):
    assert split_path("a,b:c,size=8,tests=3") == ("a,b:c", "size=8,tests=3")
    assert split_path("a") == ("a", "") and split_path("a=b,size=8") == ("a=b", "size=8")
    folder = tmp_path / "a=b,c:d"
    folder.mkdir()
    save(folder / "one.npz")
    assert load(f"domains:{folder},size=9").shape == (3, 9, 9)


# Published digits


@real
def test_published_digits_have_their_counts():
    start = time.perf_counter()
    data = load(str(REAL))
    assert time.perf_counter() - start < 30
    assert data.clients == ("mnist_small", "mnistm_small", "usps") and data.classes == 10
    assert [len(y) for y in data.targets] == [4000, 2500, 7291] and [len(y) for y in data.test_targets] == [1000] * 3
    assert all(x.min() >= 0 and x.max() <= 1 for x in data.features)
    grey = [bool((x == x[:, :1]).all()) for x in data.features]
    assert grey == [True, False, True]
    few = load(f"domains:{REAL},size=28,examples=96,tests=5000,optdigits=true", seed=1)
    assert [len(y) for y in few.test_targets] == [1860, 1000, 2007, 355] and few.shape == (3, 28, 28)
    assert all(len(np.unique(y)) == 10 for y in few.targets)  # usps is stored by class: the first 96 would be one class
