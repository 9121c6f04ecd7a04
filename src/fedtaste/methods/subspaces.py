"""Linear algebra of FedVeil's server step: bases of directions, and eigenvectors of noisy second moments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtaste.methods.shrinkage import shrunk

LEAST = 1e-3  # shorter residuals, and smaller singular values relative to the largest, are rounding and not taste
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


def public_table(m: int, k: int) -> Tensor:
    """A public random table [m, k], the same in every process."""
    return torch.randn(m, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def deflate(common: Tensor, table: Tensor) -> Tensor:
    """The table [m, k] with its columns made orthogonal to the unit vector `common` [m]."""
    common = common.double()
    return table - common[:, None] * (common @ table)


def basis(table: Tensor) -> Tensor:
    """The nearest partial isometry: it spans the same space, less directions that are too small to be known."""
    values, vectors = torch.linalg.eigh(table.T @ table)
    large = values > LEAST**2 * values[-1].clamp(min=0)
    scale = torch.where(large, values.clamp(min=1e-300).rsqrt(), 0.0)
    result: Tensor = (table @ (vectors * scale) @ vectors.T).float()
    return result


def span(table: Tensor, onto: Tensor) -> Tensor:
    """`onto` [m, k] projected to the table's left singular vectors: the k with the largest singular values, less those
    that are too small to be known."""
    vectors, values, _ = torch.linalg.svd(table, full_matrices=False)
    main = vectors[:, (values > LEAST * values[0]).nonzero()[: onto.shape[1], 0]]
    result: Tensor = main @ (main.T @ onto)
    return result


def projector(gram: Tensor, deviation: float, k: int) -> Tensor:
    """The projector to the eigenvectors above what noise alone reaches: at most k, and at least 2 if there is noise."""
    values, vectors = torch.linalg.eigh(gram)
    edge = max(deviation * math.sqrt(2 * len(gram)), LEAST * float(values[-1]))
    number = min(max(int((values > edge).sum()), 2 if deviation else 0), k, len(gram))
    main = vectors[:, len(gram) - number :]
    result: Tensor = main @ main.T
    return result


def next_basis(
    total: Tensor, before: Tensor, common: Tensor, deviation: float, pull: float, features: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """From Y = C V (`total`, with C everybody's second moments and V the basis before): the next basis U [m, k], and
    the gain G [k, k] with U G U' = A (A + pull)^-1, A = Y B^-1 Y' on the directions that noise left (Nystrom's
    approximation of C)."""
    v = before.double()
    y = total.double() @ (v.T @ v)  # columns that V does not use hold nothing but noise
    least = 2 * deviation
    if features is not None and deviation:
        vectors = torch.linalg.eigh(v.T @ y + y.T @ v)[1]
        y, least = shrunk(y @ vectors, features, deviation) @ vectors.T @ (v.T @ v), 0.0
    y = deflate(common, y)
    table = basis(y)
    values, vectors = torch.linalg.eigh((v.T @ y + y.T @ v) / 2)
    large = values > max(least, LEAST * float(values[-1]), 1e-12)
    scale = torch.where(large, values.clamp(min=1e-300).rsqrt(), 0.0)
    half = table.double().T @ y @ (vectors * scale) @ vectors.T  # A = U half half' U'
    size = half.T @ half + pull * torch.eye(len(half), dtype=torch.float64)
    return table, (half @ torch.linalg.solve(size, half.T)).float()
