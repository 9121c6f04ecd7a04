"""Matplotlib style of all plots: colours, axes, legends, and the finished plot as PNG for a folder and SVG for a page.

Figures are built through matplotlib's object interface, so no global figure or backend is touched. Text of the user
reaches a plot only as a legend entry, cut to what the bundled font can draw. Colours are Okabe and Ito's.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtaste.report.numbers import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":")
INK, MUTED, GRID = "#1f2329", "#575f6b", "#d5dae1"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", INK)
MARKERS = "osD^vPX"
DARK = {INK: "#e9ecf1", MUTED: "#aab2bf", GRID: "#3a424e", COLOURS[0]: "#4aa8e0"}  # the same SVG on a dark page

LOOK: dict[str, object] = {
    "svg.hashsalt": "fedtaste",  # ids from content, not from chance
    "text.parse_math": False,  # a $ in a label is a $
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Plot:
    """A finished plot: `name`.png for the folder, two SVGs for the page, `alt` for readers who do not see it."""

    name: str
    png: bytes
    light: bytes
    dark: bytes
    alt: str
    caption: str


def short(n: float) -> str:
    """A number as a tick: `500`, `20k`, `3M`."""
    return f"{n:g}" if n < 1000 else f"{n / 1000:g}k" if n < 1e6 else f"{n / 1e6:g}M"


def short_bytes(n: float) -> str:
    """Bytes as a tick: `2 MB`, not `2.0 MB`."""
    return human_bytes(n).replace(".0 ", " ")


def drawable(label: str) -> str:
    """A legend entry: printable Latin-1, which the bundled font has; short; no leading underscore, which hides it."""
    text = "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in label).lstrip("_") or "?"
    return text if len(text) <= 28 else text[:27] + "…"


@contextmanager
def quiet_style() -> Iterator[None]:
    """Use our style instead of the user's matplotlibrc, and silence messages about font caches."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(LOOK)  # type: ignore[arg-type]
            yield
    finally:
        log.setLevel(level)


def figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    drawing = blank()
    axes = drawing.add_subplot(facecolor="none", title=title[0].upper() + title[1:], xlabel=x, ylabel=y)
    return drawing, axes


def blank() -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(6.2, 4.2), dpi=160, facecolor="white")


def line(axes: Axes, i: int, label: str, x: Sequence[float], y: Sequence[float], **look: Any) -> None:
    """Draw one method's line. Colour, marker and dash differ, for readers who do not tell colours apart."""
    look = {"ms": 6, "markevery": max(1, len(x) // 12), **look}
    style, colour, marker = STYLES[i // 7 % 3], COLOURS[i % 7], MARKERS[(i + i // 7) % 7]
    axes.plot(x, y, style, color=colour, marker=marker, lw=2.2, label=drawable(label), **look)


def legend(figure: Figure, axes: Axes) -> None:
    """A legend under the plot, where it has more than one entry."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1:
        wide = max(map(len, names))
        columns, size = 3 if wide <= 14 else 2 if wide <= 24 else 1, 10
        if len(names) > 6 and 14 < wide <= 18:  # many runs of one method: a little smaller leaves room for the plot
            columns, size = 3, 9
        figure.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=size, handlelength=1.8)


def log_axis(axes: Axes, which: str, low: float, high: float, write: Callable[[float], str]) -> None:
    """Make an axis logarithmic, with ticks of our own: matplotlib's may be one or none within a decade."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = (low / 1.5, high * 1.5) if high < 2 * low else (low, high)
    decades = math.log10(high / low)
    steps = (1,) if decades > 3 else (1, 3) if decades > 1.5 else (1, 2, 5) if decades > 0.7 else (1, 1.5, 2, 3, 5, 7)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    axis = getattr(axes, f"{which}axis")
    pad = (high / low) ** 0.06
    low, high = low / pad, high * pad
    getattr(axes, f"set_{which}lim")(low, high)  # before the scale, for which limits are sought that may be equal
    getattr(axes, f"set_{which}scale")("log")
    axis.set_major_locator(FixedLocator([t for p in powers for s in steps if low <= (t := s * 10.0**p) <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda n, _: write(n)))


def finish(name: str, figure: Figure, alt: str, caption: str) -> Plot:
    """Render a figure: PNG, and SVG in light and in dark."""
    png, light = render(figure)
    dark = light
    for ours, theirs in DARK.items():
        dark = dark.replace(ours.encode(), theirs.encode())
    return Plot(name, png, light, dark, alt, caption)


def render(figure: Figure) -> tuple[bytes, bytes]:
    """A figure as PNG and as SVG. Its parts are placed once: `savefig` of a figure with a layout draws it twice."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    png, svg = io.BytesIO(), io.BytesIO()
    ConstrainedLayoutEngine().execute(figure)
    figure.savefig(png, format="png", metadata={"Software": None})
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()
