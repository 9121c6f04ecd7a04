"""Mixtures of a personal and the shared model: APFL (Deng et al. 2020) and LG-Mix (Jiang et al., ICLR 2024).

APFL     a person is served alpha v + (1 - alpha) w; v learns in the mixture, and alpha may learn too
LG-Mix   a person's model takes a part c of its own change and 1 - c of everybody's, by how fast each converges. The
         spread T of the last layer's inputs on the person's own examples measures that: T_own with the own model after
         training, T_shared with the shared one. c is the mean of T_own / (T_own + T_shared) over the rounds. Both use
         the kept statistics of batch norm, so that equal models give one half.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, cast

import numpy as np
import torch
from annotated_types import Le
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, Download, Examples, Fast, Method, Model, Params, People, PrivateStore, Upload
from fedtaste.errors import SettingError
from fedtaste.kernels import lgmix as kernels
from fedtaste.kernels.row_pages import WORKERS, PagedStore
from fedtaste.kernels.touched_rows import row_blocks
from fedtaste.methods.cohort_clients import REFUSALS, CohortClient, Copy
from fedtaste.methods.descent import batch_gradient, batches, change, descend, flat_examples, step, touched
from fedtaste.methods.personal_rows import PersonalRows
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import DESCENT, LogRange, Range
from fedtaste.params import dot, nest, pick, select, split, unnest
from fedtaste.signature import Count, NonNegative, Share

LEAVES = ("own", "seen", "last")  # of LG-Mix: the own model, the shared one it was mixed with, the own last change


@define(
    defaults={
        "ranking": {"rounds": 20, "passes": 3, "alpha": 0.05, "alpha_lr": 0.0},
        "ratings": {"alpha": 0.25},  # not searched, only reasoned
    },
    search={**DESCENT, "passes": LogRange(1, 10), "alpha": Range(0.0, 0.5)},
)
def apfl(
    model: Model,
    *,
    lr: NonNegative = 1.0,  # eta, learning rate of v and w
    passes: Count = 1,  # local epochs
    alpha: Share = 0.5,  # alpha, the share of v at the start
    alpha_lr: NonNegative = 0.1,  # learning rate of alpha; 0 leaves it where it starts
) -> Method:
    """Each batch takes one step of w, one of v in the mixture, and one of alpha."""
    copies = PersonalRows(model, others=("alpha",))

    def init(params: Params) -> tuple[Params, Params]:
        shared, own = copies.init(params)
        return shared, own | {"alpha": torch.tensor(float(alpha))}

    def mix(v: Params, w: Params, share: Tensor) -> Params:
        return {name: share * v[name] + (1 - share) * value for name, value in w.items()}

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        g, personal = download.params, copies.personal(own)
        w, v, share = g, copies.load(g, own), own["alpha"]
        for batch in batches(examples, passes):
            of_w, w_buffers = batch_gradient(model, w | personal, batch, w)
            of_mix, mix_buffers = batch_gradient(model, mix(v, w, share) | personal, batch, [*w, *personal])
            of_share = dot(select(of_mix, of_w), {name: v[name] - w[name] for name in w})
            v = step(v, {name: share * of_mix[name] for name in of_w}, mix_buffers, lr, batch, v)
            w = step(w, of_w, w_buffers, lr, batch, w)
            personal = step(personal, select(of_mix, personal), {}, lr, batch, ())
            share = step({"": share}, {"": of_share}, {}, alpha_lr, batch, ())[""].clamp(0, 1)
        return change(w, g, examples.mask.sum()), copies.store(v, own, examples) | personal | {"alpha": share}

    def personalize(shared: Params, own: Params, examples: Examples) -> Params:
        return mix(copies.serve(shared, own, examples), shared, own["alpha"]) | copies.personal(own)

    fast = CohortClient(model, copy=Copy(lr, passes, alpha_lr=alpha_lr)).fast(model.private)
    return Method(init, client, personalize=personalize, rows=copies.rows, fast=fast)


@dataclass(frozen=True, eq=False)
class LGMix:
    """A person's model takes a part c of its own change and 1 - c of everybody's."""

    model: Model
    _: KW_ONLY
    lr: NonNegative = 0.01  # learning rate
    passes: Count = 1  # local epochs
    trace: Literal["covariance", "gram"] = "covariance"  # T is the spread around the mean, or around zero
    share: Annotated[float, Le(1)] = -1.0  # c, from 0 to 1; below 0 it is measured

    def method(self) -> Method:
        if self.model.features is None and self.share < 0:
            raise SettingError(
                "lgmix needs the inputs of the model's last layer, and this model has no `features`. Use another model."
            )
        rows = (*self.model.rows, *(f"{leaf}.{name}" for leaf in LEAVES for name in self.model.rows))
        compiled = self.model.kind == "factorization"
        fast = Fast(self.kernel, scores=self.scores) if compiled else Fast()
        return Method(self.init, self.client, personalize=self.personalize, rows=rows, fast=fast)

    def init(self, params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, self.model.private)
        zeros = {name: torch.zeros_like(value) for name, value in shared.items()}
        own = nest("own", shared) | nest("seen", shared) | nest("last", zeros)
        ratio = torch.full((), 0.5 if self.share < 0 else self.share)
        return shared, personal | own | {"ratio": ratio, "turns": torch.zeros(())}

    def personal(self, own: Params) -> Params:
        """The private parameters that are personal by nature."""
        return split(own, (*(f"{leaf}.*" for leaf in LEAVES), "ratio", "turns"))[0]

    def mix(self, shared: Params, own: Params) -> Params:
        """w + c x own last change + (1 - c) x the others' change since: computed when it is needed, not when sent."""
        w, seen, last = (unnest(leaf, own) for leaf in LEAVES)
        c = own["ratio"]
        return {n: w[n] + c * last[n] + (1 - c) * (g - seen[n]) for n, g in shared.items()}

    def spread(self, params: Params, examples: Examples) -> Tensor:
        """T: the trace of the covariance (or of the second moments) of the last layer's inputs."""
        assert self.model.features is not None
        mask = examples.mask[:, None] / examples.mask.sum().clamp(min=1)
        inputs = torch.where(mask > 0, self.model.features(params, examples.inputs), 0.0)
        centre = (inputs * mask).sum(0) if self.trace == "covariance" else torch.zeros(())
        return ((inputs - centre) ** 2 * mask).sum()

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        g, personal = download.params, self.personal(own)
        w = self.mix(g, own)
        after = descend(self.model, w | personal, examples, self.lr, [*w, *personal], self.passes)
        last = {name: after[name] - value for name, value in w.items()}
        ratio, turns = own["ratio"], own["turns"]
        if self.share < 0:
            flat = flat_examples(examples)
            own_spread, shared_spread = self.spread(after, flat), self.spread(after | g, flat)
            ratio = (turns * ratio + own_spread / (own_spread + shared_spread).clamp(min=1e-12)) / (turns + 1)
        reach = touched(g, self.model.rows, examples)
        stored: Params = {}
        for leaf, new in zip(LEAVES, (w, g, last)):
            stored |= nest(leaf, pick(reach, new, unnest(leaf, own)))
        stored |= {"ratio": ratio, "turns": turns + 1}
        return change(after, w, examples.mask.sum()), stored | select(after, personal)

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        return self.mix(shared, own) | self.personal(own)

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, on a factorisation."""
        store, examples, table = cast(PagedStore, cohort.private), cohort.examples, download.params["item"].numpy()
        moved, weights = np.zeros((WORKERS, *table.shape), np.float32), np.zeros(WORKERS)
        refused = np.zeros((WORKERS, 3), np.int64)
        squared, centred = self.model.loss_name == "squared", self.trace == "covariance"
        rule = kernels.Rule(np.float32(self.lr), self.passes, examples.batch, squared, self.share < 0, centred)
        vectors = tuple(store.stacked[name].numpy() for name in ("user", "ratio", "turns"))
        for block in row_blocks(cohort.people, examples, len(table)):
            pages = [store.touched[name] for name in kernels.TABLES]
            slots = [part.place(block.people, block.firsts, block.items) for part in pages]
            leaves = (*(part.rows for part in pages), *slots)
            kernels.run_clients(tuple(block), table, vectors, leaves, tuple(rule), moved, weights, refused)
        upload = Upload({"item": torch.from_numpy(moved.sum(0))}, torch.tensor(weights.sum(), dtype=torch.float32))
        return upload, dict(zip(REFUSALS, refused.sum(0).tolist()))

    def scores(
        self, shared: Params, store: PrivateStore, people: People, candidates: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """The scores of candidates under `personalize`, on a factorisation."""
        return kernels.scores(shared["item"].numpy(), cast(PagedStore, store), people, candidates)


lgmix = define(
    defaults={"ranking": {"rounds": 20, "passes": 3, "server_lr": 1.0}},
    search={**DESCENT, "passes": LogRange(1, 10)},
)(LGMix)
