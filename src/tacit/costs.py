"""What a run costs: gradients on a device, threads, memory."""

from __future__ import annotations

import resource
import sys

import numba
import torch

from .core import Download, Examples
from .engine.run import State, begin
from .errors import SettingError
from .local import Meter
from .settings import Plan
from .tasks import Task


def gradients(made: Plan, task: Task, state: State) -> tuple[float, float] | None:
    """(in the first round, in a later one): gradients that one person takes, each over all of their data. Counted by
    running the first person's client; None where nothing is descended on a device."""
    method = made.method
    if method.pooled or method.examples == "history":
        return None
    federation = task.federation("final", method, made.sampling, None)
    who = federation.members[:1]
    held = Examples(*(x[0] for x in federation.examples(who, 0).pad()))
    found = []
    for at in (begin(method, made.model, federation, made.seed), state):
        own, before = {n: v[0] for n, v in at.private.gather(who).items()}, Meter.gradients
        method.client(Download(at.shared, torch.tensor(float(at.round))), own, held)
        found.append((Meter.gradients - before) / held.mask.shape[0])
    return (found[0], found[1]) if any(found) else None


def threads(number: int | None) -> None:
    """Kernels use every core by default, torch one: its operations here are small, and two threads that wait for each
    other on a busy machine are ten times slower than one."""
    if number is None:
        torch.set_num_threads(1)
        return
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if not 1 <= number <= most:
        raise SettingError(f"--threads {number} was asked for; this machine allows 1 to {most}.")
    torch.set_num_threads(number)
    numba.set_num_threads(number)


def peak_rss_mb() -> float:
    """The largest memory this process has held. macOS counts bytes where Linux counts kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
