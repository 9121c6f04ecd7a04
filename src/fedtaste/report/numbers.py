"""Format numbers for readers: bytes, seconds, decimals, intervals, values of settings."""

from __future__ import annotations

import re

NONE = "–"  # shown where there is no value


def human_bytes(n: float | None) -> str:
    """Bytes in decimal units, two digits or more.

    >>> human_bytes(999), human_bytes(3_800_000), human_bytes(999_960), human_bytes(28e9), human_bytes(None)
    ('999 B', '3.8 MB', '1.0 MB', '28 GB', '–')
    """
    if n is None:
        return NONE
    if n < 999.5:
        return f"{n:.0f} B"
    power = next((p for p in range(1, 5) if n < 999.5 * 1000**p), 5)
    n, unit = n / 1000**power, " kMGTP"[power] + "B"
    return f"{n:.1f} {unit}" if n < 9.95 else f"{n:,.0f} {unit}"


def human_seconds(seconds: float | None) -> str:
    """A duration in the unit that fits it.

    >>> human_seconds(0.034), human_seconds(0.34), human_seconds(3.4), human_seconds(75), human_seconds(7380)
    ('34 ms', '0.34 s', '3.4 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds is None:
        return NONE
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 0.95 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def decimals(value: float) -> str:
    """Three decimals; scientific notation for what would otherwise read as zero."""
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def digits(n: float) -> str:
    """A count or a size in three digits or more, never in powers of ten unless tiny.

    >>> digits(0.4217), digits(12), digits(12.345), digits(1234.5), digits(2e6)
    ('0.422', '12', '12.3', '1,234', '2,000,000')
    """
    return f"{n:,.0f}" if abs(n) >= 999.5 else f"{n:.3g}"


def interval_text(interval: tuple[float, float]) -> str:
    return f"{decimals(interval[0])}–{decimals(interval[1])}"


def short_interval(interval: tuple[float, float]) -> str:
    """An interval without leading zeros, for the wide table of a report."""
    return re.sub(r"\b0\.", ".", interval_text(interval))


def tight_interval(low: float, high: float) -> str:
    """An interval in seven characters: nine columns must fit into the 80 of a terminal.

    >>> tight_interval(0.71, 0.77), tight_interval(0.98, 1.0), tight_interval(0.0271, 0.0293), tight_interval(-0.1, 0.2)
    ('.71–.77', '.98–1.00', '±.001', '-.10–.20')
    """
    ends = [f"{end:.2f}" for end in (low, high)]
    if ends[0] == ends[1]:
        return f"±{(high - low) / 2:.3f}".replace("±0.", "±.")
    return "–".join(re.sub(r"^(-?)0", r"\1", end) for end in ends)


def plain(value: object) -> str:
    """The value of a setting as text, without Python's brackets and quotes."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    return str(value)
