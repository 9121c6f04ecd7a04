"""Linear algebra of subspace iteration (FedEigen and FedVeil): bases, and low-rank approximations of second moments.

Both methods sum Y = C V, where C are everybody's second moments of items and V a basis [m, r]. From Y alone follow the
next basis (`basis`) and Nystrom's approximation of C (`nystrom_root`). Eigenvectors have arbitrary signs, and turn
freely where eigenvalues are close; all that is computed here changes as little as the space that they span.
"""

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


def inverse_root(square: Tensor, share: float, least: float = 0.0) -> Tensor:
    """square^-1/2 of a symmetric matrix on its eigenvectors with eigenvalues above `least` and above this share of the
    largest, and 0 on the others."""
    values, vectors = torch.linalg.eigh(square)
    large = values > max(share * float(values[-1]), least)
    result: Tensor = (vectors * torch.where(large, values.clamp(min=1e-300).rsqrt(), 0.0)) @ vectors.T
    return result


def basis(table: Tensor) -> Tensor:
    """The nearest partial isometry: it spans the same space, less directions that are too small to be known."""
    return (table @ inverse_root(table.T @ table, LEAST**2)).float()


def nystrom_root(total: Tensor, before: Tensor, share: float, least: float = 0.0) -> Tensor:
    """R [m, r] with R R' = Y B^-1 Y', Nystrom's approximation of C, from Y = C V (`total`) and V (`before`);
    B = sym(V'Y), and `share` and `least` as in `inverse_root`."""
    middle = before.T @ total
    return total @ inverse_root((middle + middle.T) / 2, share, max(least, 1e-12))


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
    half = table.double().T @ nystrom_root(y, v, LEAST, least)  # A = U half half' U'
    size = half.T @ half + pull * torch.eye(len(half), dtype=torch.float64)
    return table, (half @ torch.linalg.solve(size, half.T)).float()
