"""Well-mixed numbers from different ones, for draws that depend on a seed, a round and a person. NumPy alone is enough,
so that a bundle is served without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: well-mixed numbers from different ones."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
