"""The typed result of `fedtaste bench`: its dump is what `--json` prints."""

from __future__ import annotations

from fedtaste.result_part import Count, ResultPart


class SpeedRow(ResultPart):
    """CPU seconds of one round for everybody, one thread, by backend. Fields that do not apply are left out."""

    data: str
    people: Count
    items: Count | None = None
    interactions: Count | None = None
    method: str
    first_call_seconds: float | None = None
    """Wall-clock seconds until the first round with the kernel was done, compiled code being on disk."""
    loop_cpu_seconds: float
    loop_people: Count | None = None
    """People whom the loop was measured on; its time is scaled to everybody."""
    vmap_cpu_seconds: float
    kernel_cpu_seconds: float | None = None
    loop_messages_cpu_seconds: float | None = None
    """The part of the loop that goes into encoding and decoding messages."""
    kernel_round_5_cpu_seconds: float | None = None
    """A round in which people have rows of their own from earlier rounds."""
    evaluate_cpu_seconds: float | None = None
    """Ranking one item of everybody against 99 others."""
    vmap_times_loop: float
    kernel_times_loop: float | None = None


class GrowthPoint(ResultPart):
    """CPU seconds of a kernel round on data of one size."""

    interactions: Count
    people: Count
    items: Count
    cpu_seconds: float


class Fit(ResultPart):
    """seconds = a + b x interactions, and the slope of the logarithms."""

    microseconds_per_interaction: float
    largest_deviation: float
    exponent: float
    r_squared: float
    """The share of the variance of log(seconds) that the line of the exponent explains."""


class Growth(ResultPart):
    """How the CPU time of a kernel round grows with the interactions."""

    method: str
    points: tuple[GrowthPoint, ...]
    fit: Fit


class BenchResult(ResultPart):
    """All measurements. `k` is the number of factors, where models of people and items were measured."""

    k: Count | None = None
    threads: Count
    speed: tuple[SpeedRow, ...]
    growth: tuple[Growth, ...]
