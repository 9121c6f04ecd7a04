"""Compile the kernels and write them to their cache, before several test processes would compile them side by side."""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fedtaste.data.synthetic import synthetic
from fedtaste.report import style
from support.command import WORLD, fedtaste

FILE = "user,item,rating,timestamp\n" + "".join(
    f"u{user},i{(user * step) % 41},{step % 5 + 1},{100 - step}\n" for user in range(1, 40) for step in range(1, 11)
)
FIRST = ("--method popularity --data file.csv",)  # the kernels that all runs use
HALVES = (  # of about the same length, one for each core: runs that use all kernels
    (
        *(f"--method {name}" for name in ("fedals", "fedrecon", "fedeigen", "fedseq", "lgmix", "fedncf")),
        *(f"--method {name} --task ratings" for name in ("fedals", "fedrecon")),
    ),
    (
        *(f"--method {name}" for name in ("fedrap", "fedavg", "fedtrail", "fedveil")),
        "--method apfl --backend vmap",
    ),
)  # fmt: skip


def compile_kernels(runs: tuple[str, ...]) -> None:
    """Train as a user does, but without rendering plots, and recommend to everybody."""
    style.render = lambda figure: (b"", b"")
    for words in runs:
        with tempfile.TemporaryDirectory() as folder, open(f"{folder}/file.csv", "w") as file:
            file.write(FILE)
            file.flush()
            options = words.replace("file.csv", file.name).split()
            run = fedtaste("run", *WORLD, "--rounds", 3, *options, "--out", f"{folder}/run")
            lists = fedtaste("recommend", f"{folder}/run", "--all", "--out", f"{folder}/lists.csv")
            assert not run.code and not lists.code, run.err + lists.err


if __name__ == "__main__":
    compile_kernels(FIRST)
    synthetic(30, 24, 240)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(compile_kernels, HALVES))
