"""Own and shared, mixed: APFL (Deng et al. 2020) and LG-Mix (Jiang et al., ICLR 2024).

APFL     a person is served alpha v + (1 - alpha) w; v learns in the mixture, and alpha may learn too
LG-Mix   a person's model takes a part c of its own change and 1 - c of everybody's, c by how fast each converges. That
         is told by the spread of what the last layer sees, on the person's own examples: T with the own model, after
         training, and with the shared one. c is the mean of T_own / (T_own + T_shared) over the rounds.
         Both are looked at in the same way, with the kept statistics of batch norm, so that equal models give a half.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
from ..local import batches, change, descend, dot, like, nest, pick, slope, split, step, touched, unnest, whole
from .rows import Rows


def apfl(model: Model, *, lr: float = 1.0, passes: int = 1, alpha: float = 0.5, alpha_lr: float = 0.1) -> Method:
    """Per batch one step of w and one of v in the mixture; `alpha` is where the share of v starts, `alpha_lr` 0 leaves
    it there."""
    keep = Rows(model)

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        return shared, personal | keep.init(shared) | {"alpha": torch.tensor(float(alpha))}

    def mixed(v: Params, w: Params, share: Tensor) -> Params:
        return {name: share * v[name] + (1 - share) * value for name, value in w.items()}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        g, personal = down.params, split(own, ("own.*", "met", "alpha"))[0]
        w, v, share = g, keep.warm(g, own), own["alpha"]
        for batch in batches(held, passes):
            down_w, settled_w = slope(model, w | personal, batch, w)
            down_mix, settled = slope(model, mixed(v, w, share) | personal, batch, [*w, *personal])
            towards = dot(like(down_mix, down_w), {name: v[name] - w[name] for name in w})
            v = step(v, {name: share * down_mix[name] for name in down_w}, settled, lr, batch, v)
            w = step(w, down_w, settled_w, lr, batch, w)
            personal = step(personal, like(down_mix, personal), {}, lr, batch, ())
            share = step({"": share}, {"": towards}, {}, alpha_lr, batch, ())[""].clamp(0, 1)
        return change(w, g, held.mask.sum()), keep.kept(v, own, held) | personal | {"alpha": share}

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        return mixed(keep.served(shared, own, held), shared, own["alpha"]) | split(own, ("own.*", "met", "alpha"))[0]

    return Method(init, client, personalize=personalize, rows=keep.rows)


def lgmix(
    model: Model, *, lr: float = 0.01, passes: int = 1, trace: Literal["covariance", "gram"] = "covariance",
    share: float = -1.0,
) -> Method:  # fmt: skip
    """`trace`: spread around the mean, or around zero. `share` from 0 to 1 fixes c; below 0 it is measured."""
    see = model.features
    if see is None and share < 0:
        raise SettingError("lgmix looks at what the last layer sees; this model tells no features. Use another model.")
    leaves = ("own", "seen", "last")

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        still = {name: torch.zeros_like(value) for name, value in shared.items()}
        own = nest("own", shared) | nest("seen", shared) | nest("last", still)
        return shared, personal | own | {"ratio": torch.full((), 0.5 if share < 0 else share), "turns": torch.zeros(())}

    def served(shared: Params, own: Params) -> Params:
        """w + c x own last change + (1 - c) x what the others did since: mixed when it is needed, not when sent."""
        w, seen, last = (unnest(leaf, own) for leaf in leaves)
        c = own["ratio"]
        return {n: w[n] + c * last[n] + (1 - c) * (g - seen[n]) for n, g in shared.items()}

    def spread(params: Params, one: Examples) -> Tensor:
        mask = one.mask[:, None] / one.mask.sum().clamp(min=1)
        found = torch.where(mask > 0, see(params, one.inputs), 0.0)  # type: ignore[misc]
        middle = (found * mask).sum(0) if trace == "covariance" else torch.zeros(())
        return ((found - middle) ** 2 * mask).sum()

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        g, personal = down.params, split(own, tuple(f"{leaf}.*" for leaf in leaves) + ("ratio", "turns"))[0]
        w = served(g, own)
        after = descend(model, w | personal, held, lr, [*w, *personal], passes)
        last = {name: after[name] - value for name, value in w.items()}
        ratio, turns = own["ratio"], own["turns"]
        if share < 0:
            one = Examples(*(x[0] for x in whole(held)))
            mine, theirs = spread(after, one), spread(after | g, one)
            ratio = (turns * ratio + mine / (mine + theirs).clamp(min=1e-12)) / (turns + 1)
        reach = touched(g, model.rows, held)
        new = {"own": w, "seen": g, "last": last}
        kept = [nest(leaf, pick(reach, new[leaf], unnest(leaf, own))) for leaf in leaves]
        upload = Upload({n: held.mask.sum() * v for n, v in last.items()}, held.mask.sum())
        counted = {"ratio": ratio, "turns": turns + 1}
        return upload, kept[0] | kept[1] | kept[2] | counted | like(after, personal)

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        return served(shared, own) | split(own, tuple(f"{leaf}.*" for leaf in leaves) + ("ratio", "turns"))[0]

    rows = (*model.rows, *(f"{leaf}.{name}" for leaf in leaves for name in model.rows))
    return Method(init, client, personalize=personalize, rows=rows)
