"""Models: pure functions of one person's parameters."""

from .factorization import factorization
from .neural import linear

__all__ = ["factorization", "linear"]
