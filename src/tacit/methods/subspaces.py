"""Linear algebra of fedveil's server step: bases of directions, noisy second moments, and what is learnt from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .shrinkage import shrunk

LEAST = 1e-3  # a residual shorter than this is rounding, not taste; and of singular values, beside the largest
ROOT = math.sqrt(2)


def fold(square: Tensor) -> Tensor:
    """The upper triangle, off-diagonal entries times sqrt 2: as long as the symmetric matrix itself."""
    i, j = torch.triu_indices(*square.shape)
    return square[i, j] * torch.where(i == j, 1.0, ROOT)


def unfold(flat: Tensor, size: int) -> Tensor:
    """The inverse of `fold`, in double precision."""
    i, j = torch.triu_indices(size, size)
    out = torch.zeros(size, size, dtype=torch.float64)
    out[i, j] = flat.double() / torch.where(i == j, 1.0, ROOT)
    out[j, i] = out[i, j]
    return out


def omega(m: int, k: int) -> Tensor:
    """A public random table, the same everywhere."""
    return torch.randn(m, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def without(common: Tensor, table: Tensor) -> Tensor:
    common = common.double()
    return table - common[:, None] * (common @ table)


def basis(table: Tensor) -> Tensor:
    """The nearest partial isometry: the same columns' span without what is too small to have a direction."""
    values, turn = torch.linalg.eigh(table.T @ table)
    kept = values > LEAST**2 * values[-1].clamp(min=0)
    scale = torch.where(kept, values.clamp(min=1e-300).rsqrt(), 0.0)
    return (table @ (turn * scale) @ turn.T).float()


def spanned(table: Tensor, omega: Tensor) -> Tensor:
    """omega [m, k] projected to the table's k left singular vectors of the largest singular values, less small ones."""
    vectors, values, _ = torch.linalg.svd(table, full_matrices=False)
    kept = vectors[:, (values > LEAST * values[0]).nonzero()[: omega.shape[1], 0]]
    return kept @ (kept.T @ omega)


def top(gram: Tensor, sound: float, k: int) -> Tensor:
    """The projector to the eigenvectors above what noise alone reaches: at most k, and at least 2 if there is noise."""
    values, vectors = torch.linalg.eigh(gram)
    edge = max(sound * math.sqrt(2 * len(gram)), LEAST * float(values[-1]))
    number = min(max(int((values > edge).sum()), 2 if sound else 0), k, len(gram))
    kept = vectors[:, len(gram) - number :]
    return kept @ kept.T


def learnt(
    told: Tensor, before: Tensor, common: Tensor, sound: float, pull: float, features: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """From Y = C V, C everybody's second moments: the next basis U [m, k], and the gain G [k, k] with
    U G U' = A (A + pull)^-1, A = Y B^-1 Y' on the directions that noise left (Nystrom's approximation of C)."""
    v = before.double()
    y = told.double() @ (v.T @ v)  # columns that V does not use hold nothing but noise
    least = 2 * sound
    if features is not None and sound:
        turn = torch.linalg.eigh(v.T @ y + y.T @ v)[1]
        y, least = shrunk(y @ turn, features, sound) @ turn.T @ (v.T @ v), 0.0
    y = without(common, y)
    table = basis(y)
    values, turn = torch.linalg.eigh((v.T @ y + y.T @ v) / 2)
    kept = values > max(least, LEAST * float(values[-1]), 1e-12)
    scale = torch.where(kept, values.clamp(min=1e-300).rsqrt(), 0.0)
    half = table.double().T @ y @ (turn * scale) @ turn.T  # A = U half half' U'
    size = half.T @ half + pull * torch.eye(len(half), dtype=torch.float64)
    return table, (half @ torch.linalg.solve(size, half.T)).float()
