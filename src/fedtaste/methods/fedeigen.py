"""FedEigen: item factors from eigenvectors of the summed co-occurrence of items, found by subspace iteration.

x is a person's 0/1 history, m items, n_j people have item j, s_j = (n_j + SOFT)^-1/2 and S = diag(s). The eigenvectors
of S (sum x x') S are good item factors, but a device would have to send m m / 2 numbers for x x'. It sends this:
    round 1      x                                                          m bits; the server sums n
    rounds 2..   x h', h = Q'S x / c                                        m r numbers, Q an orthonormal basis [m, r]
The server sums Y = c S (sum x h') = S (sum x x') S Q, and Q for the next round is an orthonormal basis of Y (subspace
iteration). After every round the factors follow from Y alone (Nystrom's approximation of the k largest eigenpairs,
r = k + extra):
    B = Q'Y, A = Y B^-1 Y', V = the k largest of E sqrt(e) of A = E e E', mean squared row norm 1
The first Q is random and public. People are served as by FedALS: own vector solved exactly, own recency. After the
first round alone they are served what is popular. Where k + extra is more than m, r = m, and one table is exact.
Halko, Martinsson and Tropp 2011 give the algorithm for one machine.

Rounding. Numbers of h are rounded to the nearest of the 2^bits - 1 multiples of 2^(1-bits) between -1 and 1; larger
ones are cut. The scale c is the same for everybody, so that a sum of uploads is a sum of whole numbers and fits secure
sums as it is. The server computes it from what it knows already, as `bits` times the expected root mean square of Q'S x
over people and columns: trace(A) / (n r) after a table, and sum n_j s_j^2 / (n m) before the first one. Errors of
rounding differ from person to person and average out.
Devices read the table S Q / c in multiples of FINE, whose sums are exact in double precision in any order: every
backend rounds the same h, and uploads and sums are equal in all bits.

Privacy. Rows of items that the person does not have are zero, so a single upload reveals the history: use secure sums.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, CohortExamples, Download, Examples, Fast, Method, Model, Params, Stage, Upload
from fedtaste.errors import SettingError
from fedtaste.kernels import subspace as kernels
from fedtaste.methods.descent import flat_examples, item_counts
from fedtaste.methods.fedals import MANY_ITEMS, FedALS
from fedtaste.methods.registry import PublicFacts, define
from fedtaste.methods.search_space import SOLVES
from fedtaste.methods.subspaces import basis, nystrom_root, public_table
from fedtaste.signature import CountOrNone, NonNegative, Share, Values

SOFT = 10.0  # imaginary people of every item, so that rare items do not dominate the eigenvectors
LEAST = 1e-6  # eigenvalues of B below this share of the largest are rounding
FINE = 2.0**-24  # step of the table that devices read


@dataclass(frozen=True, eq=False)
class FedEigen:
    """Item factors by subspace iteration from small uploads; the module has the formulas."""

    model: Model
    _: KW_ONLY
    extra: CountOrNone = 16  # columns of Q beyond the k factors: they make the k largest eigenvectors more exact
    bits: Literal[4, 8, 16, 32] = 4  # of every number of an upload; 32: not rounded
    lam: NonNegative = 0.01  # lambda, the regularisation of a person's own vector, as in FedALS
    alpha0: NonNegative = 0.3  # weight of items that a person did not take, as in FedALS
    recency: Share = 0.75  # recency and floor weight a person's own items by age, as in FedALS
    floor: Share = 0.02

    @property
    def inner(self) -> FedALS:
        """FedALS, for its way of serving."""
        return FedALS(self.model, lam=self.lam, alpha0=self.alpha0, recency=self.recency, floor=self.floor)

    @property
    def levels(self) -> int:
        """Numbers of an upload are multiples of 1 / levels; 0: they are not rounded."""
        return 2 ** (self.bits - 1) if self.bits < 32 else 0

    def method(self) -> Method:
        if self.model.kind != "factorization":
            raise SettingError("fedeigen ranks with model=factorization. Leave model out, or use fedals for ratings.")
        return Method(
            self.init,
            self.client,
            self.server,
            self.personalize,
            examples="history",
            rows=("item", "items", "basis", "table"),
            takes_turns=(),  # every round needs a whole sum
            fast=Fast(self.kernel, partial(self.kernel, wide=True), users=self.users),
            recipe=self.inner.recipe,
            stage=Stage(message_layout=self.message_layout, bound=1.0, step=1 / self.levels) if self.levels else None,
        )

    def init(self, params: Params) -> tuple[Params, Params]:
        m, k = params["item"].shape
        shared = {"item": torch.zeros(m, k), "gram": torch.zeros(k, k)}
        return shared | {"basis": torch.zeros(m, min(k + self.extra, m))}, {}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        table = download.params["basis"]
        x = item_counts(flat_examples(examples), len(table)).clamp(max=1)
        if float(download.round) == 0:
            return Upload({"items": x}, torch.ones(())), {}
        h = x.double() @ table.double()
        if self.levels:
            h = (h * self.levels).round().clamp(1 - self.levels, self.levels - 1) / self.levels
        return Upload({"table": x[:, None] * h.float()}, torch.ones(())), {}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        people, (m, r), k = float(upload.weight), shared["basis"].shape, shared["gram"].shape[0]
        if "items" in upload.total:
            counts = upload.total["items"].double().clamp(min=0)  # noise may have made a count negative
            scale = (counts + SOFT).rsqrt()
            variance = float((counts * scale**2).sum()) / (people * m)
            table, memory = self.announce(scale, basis(public_table(m, r)), variance)
            item = _factors(counts[:, None], k)  # until there is a table, everybody is served what is popular
            return {"item": item, "gram": item.T @ item, "basis": table}, memory
        total = upload.total["table"].double() * memory["scale"][:, None] * memory["unit"]
        root = nystrom_root(total, memory["basis"].double(), LEAST)
        item = _factors(root, k)
        table, memory = self.announce(memory["scale"], basis(total), float((root**2).sum()) / (people * r))
        return {"item": item, "gram": item.T @ item, "basis": table}, memory

    def announce(self, scale: Tensor, after: Tensor, variance: float) -> tuple[Tensor, Params]:
        """(the table S Q / c that devices read, the server's memory), from s, the next Q, and the expected square of a
        number of Q'S x."""
        unit = torch.tensor(max(min(self.bits, 16) * variance**0.5, 1e-6), dtype=torch.float64)
        table = scale[:, None] * after.double() / unit
        return ((table / FINE).round() * FINE).float(), {"scale": scale, "basis": after, "unit": unit}

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        return self.inner.personalize({name: shared[name] for name in ("item", "gram")}, own, examples)

    def users(self, shared: Params, examples: CohortExamples) -> NDArray[np.float32]:
        """The vector `user` of `personalize` for many people, [people, k]."""
        return self.inner.users(shared, examples)

    def kernel(self, download: Download, cohort: Cohort, wide: bool = False) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, compiled; `wide`: sums stay in double precision."""
        people, examples, table = cohort.people, cohort.examples, download.params["basis"].numpy()
        histories = (examples.starts, examples.inputs)
        if float(download.round) == 0:
            name, total = "items", kernels.count_people(*histories, len(table)).astype(np.float64)
        else:
            name, total = "table", kernels.sum_projections(*histories, table, self.levels)
        result = torch.from_numpy(total)
        return Upload({name: result if wide else result.float()}, torch.tensor(float(len(people)))), {}

    def message_layout(self, total: Params) -> Params:
        """Tensors like those of a message: a bit for every item, or `bits` bits for every number of a table."""
        bits = {"items": 1, "table": self.bits}
        return {n: torch.zeros(-(-value.numel() * bits[n] // 8), dtype=torch.uint8) for n, value in total.items()}


def _unread(task: str, values: Values) -> dict[str, str]:
    return {
        "loss": "it counts and solves, and descends no loss",
        "spread": "its first basis is public and the same in every run",
    }


def ranking_defaults(facts: PublicFacts) -> Values:
    """k, extra, rounds, alpha0 and lam by the number of items, chosen on validation of several data sets
    (docs/defaults.md). Bytes of upload for every item: 144, 216, 144, and 48 where the catalogue is so large that 144
    would be more than 4.5 MB. In large catalogues most people have few items and most items few people, so that a
    person's own vector needs more regularisation."""
    if facts.items < 2_500:
        return {"k": 64, "extra": 32, "rounds": 4, "alpha0": 0.2, "lam": 0.02}
    if facts.items < 6_000:
        return {"k": 128, "extra": 16, "rounds": 4, "alpha0": 0.1, "lam": 0.01}
    if facts.items < MANY_ITEMS:
        return {"k": 64, "extra": 32, "rounds": 4, "alpha0": 0.05, "lam": 0.2}
    return {"k": 32, "extra": 16, "rounds": 3, "alpha0": 0.05, "lam": 0.2}


fedeigen = define(
    defaults={"ranking": {"rounds": 4, "patience": 0}},
    scaled={"ranking": ranking_defaults},
    unread=_unread,
    search=SOLVES,
)(FedEigen)


def _factors(root: Tensor, k: int) -> Tensor:
    """V [m, k] from a root R of A = R R'. It is turned towards a public random table, which changes no score and makes
    it as stable as the space that it spans. Where R has fewer than k columns, the others are zero."""
    main = root @ torch.linalg.eigh(root.T @ root)[1][:, -k:]
    main = torch.nn.functional.pad(main, (0, k - main.shape[1]))
    left, _, right = torch.linalg.svd(main.T @ public_table(*main.shape))
    size = (main**2).sum(1).mean().sqrt()
    factors: Tensor = main @ (left @ right) / torch.where(size > 0, size, 1.0)
    return factors.float()
