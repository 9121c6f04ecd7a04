"""Compile the kernels and write them to their cache, before several test processes would compile them side by side."""

from __future__ import annotations

from fedtaste.data.synthetic import synthetic
from support.states import trained

if __name__ == "__main__":
    synthetic(30, 24, 240)
    for name in ("fedals", "fedrecon", "fedrap", "fedtrail", "fedveil", "fedavg"):
        trained(name, {}, "ranking", rounds=2)
    for name in ("fedals", "fedrecon"):
        trained(name, {}, "ratings", rounds=2)
