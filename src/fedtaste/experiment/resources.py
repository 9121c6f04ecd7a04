"""Set the number of threads of this process, and measure its peak memory."""

from __future__ import annotations

import resource
import sys

import numba
import torch

from fedtaste.errors import SettingError


def set_threads(number: int | None) -> None:
    """Set the number of threads. By default kernels use every core and torch one: its operations here are small, and
    on a busy machine two threads that wait for each other are ten times slower than one."""
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if number is not None and not 1 <= number <= most:
        raise SettingError(f"--threads must be from 1 to {most} on this machine, got {number}.")
    # Numba first: when it starts its threads, it sets the number of threads of OpenMP, which torch reads.
    numba.set_num_threads(number or numba.get_num_threads())
    torch.set_num_threads(number or 1)


def peak_rss_mb() -> float:
    """The largest memory that this process has had. macOS counts bytes where Linux counts kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
