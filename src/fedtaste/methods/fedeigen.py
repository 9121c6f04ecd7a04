"""FedEigen: item factors from eigenvectors of the summed co-occurrence of items, found by subspace iteration.

x is a person's 0/1 history, m items, n_j people have item j, s_j = (n_j + SOFT)^-1/2 and S = diag(s). The eigenvectors
of S (sum x x') S are good item factors, but a device would have to send m m / 2 numbers for x x'. It sends this:
    round 1      x                                                      m numbers; the server sums n and announces it
    rounds 2..   (S x) h', h = Q'S x                                    m r numbers, Q an orthonormal basis [m, r]
The server sums Y = S (sum x x') S Q, and Q for the next round is an orthonormal basis of Y (subspace iteration). After
every round the factors follow from Y alone (Nystrom's approximation of the k largest eigenpairs, r = k + extra):
    C = Q'Y, A = Y C^-1 Y', V = the k largest of E sqrt(e) of A = E e E', mean squared row norm 1
The first Q is random and public. People are served as by FedALS: own vector solved exactly, own recency. Two or three
rounds are enough, and uploads are rounded at random to 8 bits, because errors of single people average out.
A row of an upload is zero where the person does not have the item: a single upload reveals the history.
Halko, Martinsson and Tropp 2011 give the algorithm for one machine.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, CohortExamples, Download, Examples, Fast, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.methods.descent import flat_examples, item_counts
from fedtaste.methods.fedals import FedALS
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import SOLVES
from fedtaste.methods.subspaces import basis, public_table
from fedtaste.recipe import Recipe
from fedtaste.signature import CountOrNone, NonNegative, Share, Values
from fedtaste.wire.stages import quantise

SOFT = 10.0  # imaginary people of every item, so that rare items do not dominate the eigenvectors
LEAST = 1e-6  # eigenvalues of C below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class FedEigen:
    """Item factors by subspace iteration from small uploads; the module has the formulas."""

    model: Model
    _: KW_ONLY
    extra: CountOrNone = 16  # columns of Q beyond the k factors: they make the k largest eigenvectors more exact
    bits: Literal[8, 16, 32] = 8  # of every number of an upload; 32: not rounded
    lam: NonNegative = 0.01  # lambda, the regularisation of a person's own vector, as in FedALS
    alpha0: NonNegative = 0.3  # weight of items that a person did not take, as in FedALS
    recency: Share = 0.75  # recency and floor weight a person's own items by age, as in FedALS
    floor: Share = 0.02

    @property
    def inner(self) -> FedALS:
        """FedALS, for its way of serving."""
        return FedALS(self.model, lam=self.lam, alpha0=self.alpha0, recency=self.recency, floor=self.floor)

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
            recipe=self.recipe,
            stage=quantise(self.bits) if self.bits < 32 else None,
        )

    @property
    def recipe(self) -> Recipe:
        prior = self.alpha0 * self.model.catalogue
        return Recipe("ridge", self.lam, prior, self.alpha0, self.recency, self.floor)

    def init(self, params: Params) -> tuple[Params, Params]:
        m, k = params["item"].shape
        width = min(k + self.extra, m)
        start = basis(public_table(m, width))
        nothing = {"item": torch.zeros(m, k), "gram": torch.zeros(k, k), "items": torch.zeros(m)}
        return nothing | {"basis": start}, {}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        shared = download.params
        x = item_counts(flat_examples(examples), shared["items"].shape[0]).clamp(max=1)
        if float(download.round) == 0:
            return Upload({"items": x}, torch.ones(())), {}
        scaled = x * _scale(shared["items"])
        return Upload({"table": scaled[:, None] * (scaled @ shared["basis"])}, torch.ones(())), {}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        if "items" in upload.total:
            return shared | {"items": upload.total["items"].float()}, memory
        total = upload.total["table"].double()
        item = _factors(total, shared["basis"].double(), shared["gram"].shape[0])
        return shared | {"basis": basis(total), "item": item, "gram": item.T @ item}, memory

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        return self.inner.personalize({name: shared[name] for name in ("item", "gram")}, own, examples)

    def users(self, shared: Params, examples: CohortExamples) -> NDArray[np.float32]:
        """The vector `user` of `personalize` for many people, [people, k]."""
        return self.inner.users(shared, examples)

    def kernel(self, download: Download, cohort: Cohort, wide: bool = False) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort by sparse algebra; `wide`: sums stay in double precision."""
        from scipy import sparse  # takes a third of a second, which every process would spend

        shared, people, examples = download.params, cohort.people, cohort.examples
        m = len(shared["items"])
        x = sparse.csr_matrix((np.ones(len(examples.inputs)), examples.inputs, examples.starts), (len(people), m))
        x.sum_duplicates()
        x.data[:] = 1.0
        name, total = "items", np.asarray(x.sum(0))[0]
        if float(download.round):
            x = x @ sparse.diags(_scale(shared["items"]).double().numpy())
            name, total = "table", x.T @ (x @ shared["basis"].double().numpy())
        result = torch.from_numpy(np.ascontiguousarray(total))
        return Upload({name: result if wide else result.float()}, torch.tensor(float(len(people)))), {}


def _unread(task: str, values: Values) -> dict[str, str]:
    return {
        "loss": "it counts and solves, and descends no loss",
        "spread": "its first basis is public and the same in every run",
    }


fedeigen = define(defaults={"ranking": {"rounds": 4, "patience": 0}}, unread=_unread, search=SOLVES)(FedEigen)


def _scale(counts: Tensor) -> Tensor:
    """s_j of every item. Noise may have made a count negative."""
    return (counts.clamp(min=0) + SOFT).rsqrt()


def _factors(total: Tensor, before: Tensor, k: int) -> Tensor:
    """V [m, k] from Y (`total`) and the basis Q that it was computed with.

    Eigenvectors have arbitrary signs, and turn freely where eigenvalues are close: V is turned towards a public random
    table, which changes no score and makes it as stable as the space that it spans.
    """
    middle = before.T @ total
    values, vectors = torch.linalg.eigh((middle + middle.T) / 2)
    large = values > LEAST * values[-1].clamp(min=1e-30)
    root = vectors * torch.where(large, values.clamp(min=1e-300).rsqrt(), 0.0)
    half = total @ root  # A = half half'
    main = half @ torch.linalg.eigh(half.T @ half)[1][:, -k:]
    main = _padded(main, k)
    left, _, right = torch.linalg.svd(main.T @ public_table(*main.shape))
    size = (main**2).sum(1).mean().sqrt()
    factors: Tensor = main @ (left @ right) / torch.where(size > 0, size, 1.0)
    return factors.float()


def _padded(table: Tensor, k: int) -> Tensor:
    """The table with columns of zeros up to k, for a catalogue smaller than k."""
    return torch.nn.functional.pad(table, (0, k - table.shape[1]))
