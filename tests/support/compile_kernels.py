"""Compile the kernels and write them to their cache, before several test processes would compile them side by side."""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fedtaste.data.synthetic import synthetic
from fedtaste.report import style
from support.command import WORLD, fedtaste

HALVES = (  # of about the same length, one for each core: methods and tasks that use all kernels
    {"ranking": ("fedals", "fedrecon", "fedeigen", "fedseq", "lgmix", "fedncf"), "ratings": ("fedals", "fedrecon")},
    {"ranking": ("fedrap", "fedavg", "fedtrail", "fedveil", "apfl", "popularity")},
)


def compile_half(half: dict[str, tuple[str, ...]]) -> None:
    """Run every method of a half as a user does, but without rendering plots, and recommend to everybody."""
    style.render = lambda figure: (b"", b"")
    for task, names in half.items():
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                run = fedtaste("run", *WORLD, "--rounds", 3, "--method", name, "--task", task, "--out", f"{folder}/run")
                lists = fedtaste("recommend", f"{folder}/run", "--all", "--out", f"{folder}/lists.csv")
                assert not run.code and not lists.code, run.err + lists.err


if __name__ == "__main__":
    synthetic(30, 24, 240)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(compile_half, HALVES))
