"""The plot of `fedtaste bench --peers`: one bar a program, CPU seconds on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path

from fedtaste.bench.peers_result import PeersResult
from fedtaste.errors import SettingError
from fedtaste.files.atomic import write_atomically
from fedtaste.report.style import COLOURS, INK, MUTED, blank, finish, log_axis, quiet_style

TITLES = {"als": "Alternating least squares", "fedavg": "FedAvg of a factorisation"}


def check_plot_path(path: Path) -> None:
    """Refuse a path that is no plot, before anything is measured."""
    if path.suffix not in (".png", ".svg"):
        raise SettingError(f"--out of bench --peers must end with .png or .svg, got {path}.")
    if not path.absolute().parent.is_dir():
        raise SettingError(f"--out {path}: the folder {path.parent} does not exist. Create it first.")


def draw(result: PeersResult, path: Path) -> None:
    """Write the plot as PNG or SVG."""
    with quiet_style():
        figure = blank()
        figure.set_size_inches(7.6, 0.8 + sum(0.8 + 0.34 * _bars(result, about.part) for about in result.data))
        heights = [_bars(result, about.part) + 1 for about in result.data]
        panels = figure.subplots(len(result.data), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, about in zip(panels, result.data):
            lines = sorted((x for x in result.lines if x.part == about.part), key=lambda x: -x.cpu_seconds)
            seconds = [line.cpu_seconds for line in lines]
            log_axis(axes, "x", min(seconds) / 2, max(seconds) * 2, lambda n: f"{n:g}")
            bars = axes.barh(
                [f"{x.name} (fedtaste)" if x.ours else x.name for x in lines], seconds,
                color=[COLOURS[0] if x.ours else MUTED for x in lines], left=0, height=0.7,
            )  # fmt: skip
            axes.bar_label(bars, [f"{s:.3g}" for s in seconds], padding=4, fontsize=9, color=INK)
            axes.tick_params(axis="y", labelsize=9.5, labelcolor=INK)
            axes.grid(False, axis="y")
            size = f"{about.people:,} people, {about.items:,} items, {about.interactions:,} interactions, k {about.k}"
            axes.set_title(f"{TITLES[about.part]}\n{size}", fontsize=10.5)
            axes.set_xlabel("CPU seconds of one round, one core", fontsize=9.5)
        plot = finish(path.stem, figure, "CPU seconds of one round by library", "")
    write_atomically(path, plot.png if path.suffix == ".png" else plot.light)


def _bars(result: PeersResult, part: str) -> int:
    return sum(line.part == part for line in result.lines)
