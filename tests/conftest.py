"""Fixtures, the choice between unit and integration tests, and Hypothesis settings, for all tests.

`pytest --only unit` collects the modules that support/modules.py does not name in INTEGRATION (`make check`);
`pytest --only integration` collects the others (`make test` runs both). Hypothesis has no deadline per example, because
a kernel may be compiled in the first one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtaste.report import style
from fedtaste.serving import item_map
from support.modules import DRAWN, INTEGRATION, MAPPED, PLOTTED

settings.register_profile("fedtaste", deadline=None)
settings.load_profile("fedtaste")

NUMBERS = count()  # of the tests' ledgers
RENDER, ADD_SUBPLOT, TSNE = style.render, Figure.add_subplot, item_map._tsne
PIXEL = bytes.fromhex(  # a PNG file
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a4944415478da63600000000200"
    "01e527defc0000000049454e44ae426082"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", choices=["unit", "integration"], help="collect one half of the test modules")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of the other half before they are imported. None lets pytest decide."""
    only, name = config.getoption("--only"), collection_path.stem
    if only is None or not name.startswith("test_"):
        return None
    return True if (name in INTEGRATION) != (only == "integration") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order modules as INTEGRATION does, others last."""
    place = {name: at for at, name in enumerate(INTEGRATION)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


class NoAxes:
    """Axes that accept whatever is drawn on them, and draw nothing."""

    def __getattr__(self, name: str) -> NoAxes:
        return self

    def __call__(self, *_: object, **__: object) -> NoAxes:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def get_legend_handles_labels(self) -> tuple[list[Any], list[str]]:
        return [], []

    def get_xlim(self) -> tuple[float, float]:
        return 1.0, 10.0

    get_ylim = get_xlim


def add_subplot(figure: Figure, *place: int, **options: Any) -> Any:
    """Figures with several axes read them back, so they have real ones."""
    return ADD_SUBPLOT(figure, *place, **options) if place else NoAxes()


def one_pixel(_: Figure) -> tuple[bytes, bytes]:
    """A figure as PNG and as SVG, without rendering it."""
    return PIXEL, b"<svg xmlns='http://www.w3.org/2000/svg'></svg>"


@pytest.fixture(scope="module", autouse=True)
def quick_plots(request: pytest.FixtureRequest) -> Iterator[None]:
    """Do not render plots where no test looks at them: rendering is nine tenths of the time of a small run, and
    creating axes a sixth of the rest.

    The modules named in DRAWN, and tests that ask for `real_plots`, get plots as a user does. Those named in PLOTTED
    have real axes.
    """
    if request.path.stem in DRAWN:
        yield
        return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "render", one_pixel)
        if request.path.stem not in PLOTTED:
            patch.setattr(Figure, "add_subplot", add_subplot)
        yield


@pytest.fixture
def plain_plots() -> Iterator[None]:
    """Do not render plots in this test, in a module of DRAWN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "render", one_pixel)
        yield


@pytest.fixture
def real_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render plots in this test."""
    monkeypatch.setattr(style, "render", RENDER)
    monkeypatch.setattr(Figure, "add_subplot", ADD_SUBPLOT)


def first_coordinates(direction: NDArray[np.float32]) -> NDArray[np.float64]:
    """Places of items on the map, by two of their numbers."""
    return np.pad(direction.astype(np.float64), ((0, 0), (0, 2)))[:, :2]


@pytest.fixture(scope="module", autouse=True)
def quick_maps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Do not compute t-SNE where no test looks at the map: it is nine tenths of the time of an export. The modules
    named in MAPPED, and tests that ask for `real_maps`, have the map that a user has."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in MAPPED:
            patch.setattr(item_map, "_tsne", first_coordinates)
        yield


@pytest.fixture
def real_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place items by t-SNE in this test."""
    monkeypatch.setattr(item_map, "_tsne", TSNE)


@pytest.fixture(scope="session", autouse=True)
def ledgers(tmp_path_factory):
    """Keep private runs of fixtures out of the user's privacy ledgers, in subprocesses as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTASTE_LEDGERS", str(tmp_path_factory.mktemp("ledgers")))
        yield


@pytest.fixture(autouse=True)
def own_ledgers(ledgers, tmp_path_factory):
    """Each test has ledgers of its own. In shared ones a run would be composed with the runs of all earlier tests, and
    this would take longer with every test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTASTE_LEDGERS", str(tmp_path_factory.getbasetemp() / "ledgers-of-tests" / str(next(NUMBERS))))
        yield


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, with an empty cache and without a network."""
    from support.command import no_network

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTASTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDTASTE_DEBUG", raising=False)
    no_network(monkeypatch)
    return tmp_path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One headless browser for the tests of a file; without chromium or Playwright they are skipped."""
    from support.browser import FLAGS, PROGRAMS

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"needs chromium; none of {', '.join(PROGRAMS)} is installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("needs Playwright to drive chromium; it is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The files of an exported FedALS bundle."""
    from support.bundles import bundle_of
    from support.pages import files_in

    return files_in(bundle_of("fedals"))


@pytest.fixture(scope="module")
def titles(files: dict[str, bytes]) -> list[str]:
    """The titles of that bundle's items."""
    return json.loads(files["items.json"])["titles"]
