"""Compile the kernels and write them to their cache, before several test processes would compile them side by side."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fedtaste.data.synthetic import synthetic
from support.states import trained

HALVES = (  # of about the same length, one for each core: methods and tasks that use all kernels
    {"ranking": ("fedals", "fedrecon", "fedeigen"), "ratings": ("fedals", "fedrecon")},
    {"ranking": ("fedrap", "fedavg", "fedtrail", "fedveil")},
)


def compile_half(half: dict[str, tuple[str, ...]]) -> None:
    for task, names in half.items():
        for name in names:
            trained(name, {}, task, rounds=2)


if __name__ == "__main__":
    synthetic(30, 24, 240)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(compile_half, HALVES))
