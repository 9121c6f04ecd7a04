"""Scatter plot of shared and private item embeddings in the plane of most variance, as in FedRAP's paper.

Every run whose people keep item rows of their own beside a shared table of the same width has such a plot. The rows
are read from final.safetensors, and only those of a few people, so that a report can be written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedtaste.report.numbers import decimals
from fedtaste.report.style import COLOURS, MARKERS, Plot, blank, drawable, finish
from fedtaste.result_part import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1_200  # in a panel: more make a heavy page and hide each other
PEOPLE = 3
PANELS = 6
Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Plane:
    """Item rows of a run, projected to the plane of most variance."""

    common: Rows  # [rows, 2]
    own: dict[int, Rows]  # by the number of the person
    explained: tuple[float, float]  # the shares of the variance of all these rows along the two axes
    zeros: float  # the share of exact zeros in the common table


def read_plane(folder: Path, items: int, *, points: int = POINTS) -> Plane | None:
    """The plane of a run folder; None where there are no two tables, or the file is missing or damaged: a report does
    not fail for a picture. Half of the points are common rows, the others those of the people with most rows."""
    try:
        with safe_open(folder / "final.safetensors", "np") as file:
            tables = _tables(file, items)
    except (OSError, ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, SafetensorError):
        return None
    if tables is None:
        return None
    common, own = tables
    rng, each = np.random.default_rng(0), points // 2 // max(len(own), 1)
    parts = [_some(rng, common, points // 2), *(_some(rng, rows, each) for rows in own.values())]
    rows = np.concatenate(parts)
    if not np.isfinite(rows).all() or np.ptp(rows, axis=0).max() == 0:
        return None
    placed, explained = pca(rows)
    cuts = np.split(placed, np.cumsum([len(part) for part in parts])[:-1])
    return Plane(cuts[0], dict(zip(own, cuts[1:])), explained, float((common == 0).mean()))


def pca(rows: Rows) -> tuple[Rows, tuple[float, float]]:
    """(rows in the plane of most variance, the shares of the variance along it); signs are fixed."""
    centred = rows - rows.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[[0, 1], np.abs(axes[:2]).argmax(1)])[:, None]
    first, second = (sizes[:2] ** 2 / (sizes**2).sum()).tolist()
    return centred @ axes.T, (first, second)


def _some(rng: np.random.Generator, rows: Rows, most: int) -> Rows:
    return rows if len(rows) <= most else rows[np.sort(rng.choice(len(rows), most, replace=False))]


def _tables(file: Any, items: int) -> tuple[Rows, dict[int, Rows]] | None:
    """(the shared item table, a few people's own rows by person) of the first private leaf that has both."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    for name, shape in shapes.items():
        if not (name.startswith("private.touched.") and name.endswith(".values") and shape[0] and shape[2] > 1):
            continue
        common = next((n for n, s in shapes.items() if n.startswith("shared.") and s == (items, shape[2])), None)
        if common is not None:
            scale = file.get_tensor("private.stacked.scale") if "private.stacked.scale" in shapes else None
            own = {
                person: rows.astype(float) * (1.0 if scale is None else float(scale[person]))  # FedRAP stores D / scale
                for person, rows in _most_rows(file, name.removesuffix("values"))
            }
            return file.get_tensor(common).astype(float), own
    return None


def _most_rows(file: Any, leaf: str) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The people who hold the most rows, with their rows, page by page (kernels/row_pages.py)."""
    first, follows, used = (file.get_tensor(leaf + name) for name in ("first", "follows", "used"))
    pages = file.get_slice(leaf + "values")
    size = pages.get_shape()[1]
    for person in np.argsort(-used, kind="stable")[:PEOPLE].tolist():
        rows, page = [], int(first[person])
        for _ in range(min(-(-int(used[person]) // size), len(follows))):  # a damaged file may go in circles
            rows.append(pages[page : page + 1][0])
            page = int(follows[page])
        if rows:
            yield person, np.concatenate(rows)[: used[person]]


def item_plot(planes: Sequence[tuple[str, Plane]]) -> Plot:
    """One panel per run, each with its own axes: the planes of different runs have nothing in common."""
    shown, drawing = planes[:PANELS], blank()
    down, across = (1, len(shown)) if len(shown) < 3 else (2, (len(shown) + 1) // 2)
    for i, (label, plane) in enumerate(shown):
        _panel(drawing.add_subplot(down, across, i + 1, facecolor="none"), label, plane, len(shown))
    handles, names = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside lower left", ncols=4, fontsize=10, markerscale=2, handlelength=1)
    alt = "; ".join(f"{label}: {_spread(plane)}" for label, plane in shown)
    return finish(
        "items", drawing, f"Scatter plot of common and own item rows, placed by PCA. {alt}.", _caption(planes)
    )


def _panel(axes: Axes, label: str, plane: Plane, panels: int) -> None:
    """Panels are small: beside others, a run shows one person, and fewer common rows."""
    single = panels == 1
    look: JsonObject = {"ls": "", "ms": 3.6 if single else 2.8, "mew": 0, "alpha": 0.6}
    axes.plot(*plane.common[::panels].T, MARKERS[0], color=COLOURS[0], label="common", **look)
    for n, (person, rows) in enumerate(list(plane.own.items())[: None if single else 1], 1):
        name = f"own, person {person}" if single else "own, one person"
        axes.plot(*rows.T, MARKERS[n], color=COLOURS[n], label=name, **look)
    axes.set_aspect("equal", adjustable="datalim")  # a distance is as long in every direction
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    axes.set_title("Common and own items in one plane" if single else drawable(label), fontsize=12.5 if single else 10)
    across, up = (f"{100 * part:.0f} % of variance" for part in plane.explained)
    axes.set_xlabel(f"first axis, {across}" if single else across, fontsize=11 if single else 9)
    axes.set_ylabel(f"second axis, {up}" if single else up, fontsize=11 if single else 9)


def _caption(planes: Sequence[tuple[str, Plane]]) -> str:
    """What to look for, and whose rows are shown: people are numbers here, never names."""
    text = (
        "Rows of items in the plane of most variance (PCA). FedRAP’s paper wants own and common rows apart, and the "
        "common ones sparse. "
    )
    if len(planes) == 1:
        label, plane = planes[0]
        *others, last = map(str, plane.own)
        whose = f"people {', '.join(others)} and {last}" if others else f"person {last}"
        return (
            f"{text}{label}: the plane shows {_percent(sum(plane.explained))} of the variance, {_percent(plane.zeros)} "
            f"of common numbers are exactly zero. Own rows are of {whose}, who touched the most items."
        )
    each = (
        f"{label}: {_percent(sum(plane.explained))}, {_percent(plane.zeros)}, person {next(iter(plane.own))}"
        for label, plane in planes[:PANELS]
    )
    text += "Variance in the plane, exact zeros among common numbers, and whose own rows (who touched the most items): "
    text += "; ".join(each) + "."
    return text + (f" The first {PANELS} runs are shown." if len(planes) > PANELS else "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%" if share == 0 or share >= 0.01 else f"{100 * share:.1g}\u00a0%"


def _spread(plane: Plane) -> str:
    """How far apart common and own rows are, for readers who do not see the plot."""
    own = np.concatenate(list(plane.own.values()))
    apart = float(np.linalg.norm(own.mean(0) - plane.common.mean(0)))
    wide = [float(((rows - rows.mean(0)) ** 2).sum(1).mean() ** 0.5) for rows in (plane.common, own)]
    return (
        f"{len(plane.common):,} common rows spread by {decimals(wide[0])} around their middle, {len(own):,} own rows "
        f"by {decimals(wide[1])}, the middles {decimals(apart)} apart; {_percent(sum(plane.explained))} of the variance"
    )
