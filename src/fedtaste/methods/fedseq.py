"""FedSeq: a small sequence network (attention or GRU) trained by federated rounds, on top of counts that are sent once.

    counting   in the first round everybody sends FedTrail's counts: the items n, the pairs C for the trail table N
               (`trail`), and the Gram matrix x x' for the embeddings at the start (`start=gram`). With `start=eigen`
               or `start=als` everybody takes part in BEFORE rounds of FedEigen or FedALS instead, for its factors.
               There is no counting with `start=random`, nor with `start=features`, whose embeddings are public
    training   in every later round a cohort takes one gradient step each on the loss of sequence_loss.py, and sends the
               sum of gradients over the positions of one window of its history, and their number
    server     adds by Adam with warm-up, cosine and a bound on the norm of the mean gradient (server_optimizers.py)
    bits       below 32, gradients are sent as whole numbers with announced steps (announced_steps.py)
    served     s_q = h.E_q + b_q + alpha log(t_q + eps) after the newest items of the own history, on the device
Cohorts are drawn in passes: everybody takes part once before anybody takes part again, `participations` times in all.
Item embeddings E have the width k of the model, and are the input and the output of the network (as in SASRec, Kang and
McAuley 2018). Gradients are dense messages: rows of E that are not zero are the person's items and the negatives, so
that a single upload reveals the history; only sums hide it.
A history of one item has nothing to predict: it sends zeros, with the weight of one position.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedtaste.core import Cohort, Download, Examples, Fast, Method, Model, Params, Schedule, ServerStep, Stage, Upload
from fedtaste.errors import SettingError
from fedtaste.methods import announced_steps
from fedtaste.methods import sequence_loss as losses
from fedtaste.methods.descent import ages, flat_examples, item_counts
from fedtaste.methods.fedals import FedALS
from fedtaste.methods.fedals import ranking_defaults as als_defaults
from fedtaste.methods.fedeigen import FedEigen
from fedtaste.methods.fedtrail import MOST_ITEMS, FedTrail, eigenfactors, normalise
from fedtaste.methods.gradients import gradient_and_value
from fedtaste.methods.one_step import one_step_kernel
from fedtaste.methods.registry import PublicFacts, define
from fedtaste.methods.search_space import Around, Choice, LogRange, Range
from fedtaste.methods.sequence_fast import Batch, cohort_losses, packed_dropout
from fedtaste.methods.server_optimizers import server_step
from fedtaste.models.sequence import Network, network_params, network_states
from fedtaste.params import nest, select, unnest
from fedtaste.recipe import Recipe, SequenceRecipe, TrailRecipe
from fedtaste.signature import Count, CountOrNone, NonNegative, Share, Values

WIDTH = 64  # k
COHORT = 32  # people in a round of training, where the caller gives no number
# Shared parameters that training does not move.
FIXED = ("items", "key", "trail", "from_scale", "to_scale", "eps", "start.basis", "start.item", "start.gram")
STEPS = "steps"  # shared, of `bits` below 32: the announced steps, by trained parameter
BEFORE = {"eigen": 3, "als": 6}  # rounds of the method whose factors are the embeddings at the start
KEPT = {"eigen": ("basis",), "als": ("item", "gram")}  # its shared parameters that its clients read, as "start...."
UNCOUNTED = ("features", "random")  # starts without a counting round
NO_FEATURES = (
    "start=features needs public item features where the server is, and there are none: the catalogue has no genres "
    "and no years in its titles, or all items have the same ones. Use start=random."
)
EXTRA = 16  # columns of FedEigen's tables beside the k
USUAL, MANY, MOST = 16, 24, 64  # participations: of few people; of many people, without a budget and within one
ROUNDS = 4_000  # of training, that many people need without a budget: so many more people participate less often
# Where there are more items than so many times the people, a network learns single people by heart: fewer
# participations are better on validation of Amazon Video and MovieTweetings (docs/sequences.md).
SPARSE, FEW = 3, 4
MANY_PEOPLE = 2_000  # from which more than USUAL participations gain (docs/sequences.md)
RATE = 4e10  # multiplications and additions in a CPU second of the fast path (benchmarks/sequences.py speed)
THETA = 0.175  # at the start
KEYS = 2**24  # keys of public draws: a number in [0, 1) of single precision holds one
SKIPPED = 8  # random bytes of a person before those of dropout
MOST_LAYERS = 64  # attention blocks
AT_ONCE = 8192  # positions in a sub-batch of the fast path


@dataclass(frozen=True, eq=False)
class FedSeq:
    """A federated sequence model; the module has the formulas."""

    model: Model
    _: KW_ONLY
    participations: Count | Literal["auto"] = "auto"  # rounds of training in which each person takes part; auto: by
    # the numbers of people and items 1 to 24, or what `upload_mb` and `cpu_minutes` allow
    start: Literal["gram", "eigen", "als", "items", "features", "random"] = "gram"  # item embeddings at the start: from
    # the Gram matrix, or rounds of FedEigen or FedALS; random, with n; without counts: public item features, or random
    trail: bool = True  # whether the logit has FedTrail's term
    network: Literal["attention", "gru"] = "attention"
    layers: Count = 2  # attention blocks
    heads: Count = 2  # of each block; they divide k
    length: Count = 128  # L, the newest items that the network sees
    negatives: Count = 768  # expected number of negatives that everybody shares in a round
    hidden_dropout: Share = 0.2  # share of the network's numbers that a client drops while it trains
    bits: Literal[4, 8, 16, 32] = 32  # of every number of an upload of gradients; 32: not rounded
    upload_mb: NonNegative = 0.0  # largest sum of a person's uploads of gradients, in MB before --wire; 0: any
    cpu_minutes: NonNegative = 0.0  # about how many CPU minutes all of the training may take on one machine; 0: any
    learners: CountOrNone = 0  # public number of people who learn, for the number of rounds; 0: the caller's rounds
    cohort: CountOrNone = 0  # people in a round of training; 0: 32
    noise: NonNegative = 0.0  # standard deviation of the noise on sums, as a multiple of the largest upload
    features: Tensor | None = None  # [items, columns], public, for start=features; read by the server alone
    feature_count: CountOrNone = 0  # columns of `features`, for processes that do not have it

    def method(self) -> Method:
        self.check()
        return Method(
            self.init,
            self.client,
            self.server_with(server_step("adam-unbiased", lr=2e-3, tau=1e-8, warmup=100, max_norm=1.0)),
            self.personalize,
            examples="history",
            fast=Fast(self.kernel if self.bits == 32 else None, bulk=self.bulk),
            server_with=self.server_with,
            schedule=self.schedule,
            ordered=True,
            resolved={"participations": self.used_participations},
            recipe=self.recipe,
            tables=self.tables,
            stage=self.stage,
        )

    def check(self) -> None:
        """Refuse a model or settings that do not fit together."""
        if self.model.kind != "factorization":
            raise SettingError(
                "fedseq ranks items with model=factorization, whose item table it uses, and does not predict ratings. "
                "Leave model out; for --task ratings use fedals."
            )
        if self.network == "attention" and self.width % self.heads:
            divisors = ", ".join(str(n) for n in range(1, 17) if self.width % n == 0)
            raise SettingError(
                f"heads must divide k, got heads={self.heads} and k={self.width}. Use one of {divisors}."
            )
        if self.layers > MOST_LAYERS:
            raise SettingError(f"layers must be at most {MOST_LAYERS}, got {self.layers}; 2 is usual.")
        if self.trail and self.start in UNCOUNTED:
            raise SettingError(
                f"trail=true needs counts, and start={self.start} sends none. Use trail=false, or another start."
            )
        if self.features is not None and len(self.features) != self.items:
            raise SettingError(
                f"features must have a row for each of {self.items:,} items, got {len(self.features):,}."
            )
        if self.hidden_dropout == 1:
            raise SettingError("hidden_dropout must be below 1, got 1: nothing would be left.")
        if self.bits < 32 and 0 < self.cohort < announced_steps.SMALLEST:
            raise SettingError(
                f"bits below 32 need a --cohort of {announced_steps.SMALLEST} people or more, because steps follow "
                f"from sums; got {self.cohort}. Use --set bits=32."
            )
        if self.items > MOST_ITEMS and (self.trail or self.start == "gram"):
            raise SettingError(
                f"fedseq counts pairs of items for at most {MOST_ITEMS:,} items, got {self.items:,}. Use --set "
                "trail=false --set start=eigen, which counts no pairs, or fedals."
            )
        self.check_private()

    def check_private(self) -> None:
        """Refuse settings that noise does not allow."""
        if self.noise and self.bits < 32:
            raise SettingError("bits must be 32 in a private run, whose noise has a grid of its own. Leave it out.")
        if self.noise and (self.counting or not self.cohort):
            missing = ["--set trail=false"] if self.trail else []
            missing += [] if self.start in UNCOUNTED else ["--set start=features (or random, without genres)"]
            missing += [] if self.cohort else ["--cohort with a hundred people or so"]
            raise SettingError(
                f"A private run of fedseq also needs {' and '.join(missing)}: counts of item pairs do not survive the "
                "noise, nor do gradients of few people. On ML-100K --set server_lr=0.01 --set warmup=10 --set "
                "hidden_dropout=0 helped. fedveil is made for noise."
            )

    @cached_property
    def width(self) -> int:
        """d, the width of the model's item table."""
        return int(self.model.init(torch.Generator())["item"].shape[1])

    @property
    def items(self) -> int:
        return self.model.catalogue

    @property
    def bulk(self) -> int:
        """Numbers in an upload of the network and in its work space, so that few clients run at once."""
        of_factors = self.items * self.width * (self.width + 3) // 2 if self.start == "als" else 0
        return max(of_factors, 2 * self.items * self.width + self.length * (self.negatives + 8 * self.width))

    @property
    def counting(self) -> int:
        """Rounds of counting, in which everybody takes part."""
        return 0 if self.start in UNCOUNTED else 1 + BEFORE.get(self.start, 0)

    @property
    def schedule(self) -> Schedule:
        size = self.cohort or COHORT
        pass_rounds = math.ceil(self.learners / size)
        rounds = self.counting + self.used_participations * pass_rounds if pass_rounds else 0
        return Schedule(rounds, self.counting, pass_rounds, size, FIXED)

    @cached_property
    def used_participations(self) -> int:
        """Participations within the limits of `upload_mb` and `cpu_minutes`."""
        units = {"upload_mb": self.upload_size, "cpu_minutes": self.learners * self.step_seconds / 60}
        budgets = {name: (getattr(self, name), unit) for name, unit in units.items() if getattr(self, name)}
        for name, (budget, unit) in budgets.items():
            if budget < unit:
                measure = "MB of uploads" if name == "upload_mb" else "CPU minutes"
                raise SettingError(
                    f"{name}={budget:g} does not allow one participation, which takes {unit:.6g} {measure}. Give more, "
                    "use a smaller k, or fedtrail, which needs no rounds of training."
                )
        allowed = [int(budget / unit) for budget, unit in budgets.values() if unit]
        wanted = self.usual_participations(bool(budgets)) if self.participations == "auto" else self.participations
        return min(wanted, *allowed, 2**31)

    def usual_participations(self, within_budget: bool) -> int:
        """What `auto` stands for. Within a budget it is the largest number that gains anything."""
        if self.learners and self.items > SPARSE * self.learners:
            most = FEW
        elif self.learners < MANY_PEOPLE:
            return USUAL
        else:
            most = MOST if within_budget else MANY
        pass_rounds = math.ceil(self.learners / (self.cohort or COHORT))
        return most if within_budget else min(most, max(1, round(ROUNDS / pass_rounds)))

    @property
    def upload_size(self) -> float:
        """MB of the upload of one participation."""
        return self.bits / 8e6 * (self.items * (self.width + 1) + self.network_size)

    @property
    def step_seconds(self) -> float:
        """About how many CPU seconds one participation takes, with a window of full length: products of every parameter
        and every negative with every position, and attention; each once forwards and twice backwards."""
        length = min(self.length, self.items)
        products = length * (self.network_size + min(self.negatives, self.items) * self.width)
        attention = 2 * length**2 * self.width * self.layers if self.network == "attention" else 0
        return 6 * (products + attention) / RATE

    @property
    def network_size(self) -> int:
        """Numbers of the network beside the embeddings and biases of the items."""
        return sum(math.prod(shape) for shape in self.network_shapes.values()) + int(self.trail)

    @cached_property
    def network_shapes(self) -> dict[str, torch.Size]:
        """The shapes of the network's parameters. `method` needs them first, since nothing can be drawn under vmap."""
        return {name: value.shape for name, value in network_params(self.shape, torch.Generator()).items()}

    @cached_property
    def shape(self) -> Network:
        """The network and its sizes."""
        return Network(self.network, self.width, self.layers, self.heads, self.length)

    @property
    def counter(self) -> FedTrail:
        """FedTrail, for its counts."""
        parts: Literal["trail", "factors", "trail+factors"] = "trail+factors"
        if not (self.trail and self.start == "gram"):
            parts = "trail" if self.trail else "factors"
        return FedTrail(self.model, parts=parts, window=losses.WINDOW, fade=losses.FADE)

    @property
    def factors(self) -> FedEigen | FedALS:
        """The method whose factors are the embeddings at the start: FedEigen, whose uploads are not rounded, or FedALS
        with its defaults for data of this size."""
        if self.start == "eigen":
            return FedEigen(self.model, extra=EXTRA, bits=32)
        usual = als_defaults(PublicFacts(self.learners or 0, self.items, timed=True))
        return FedALS(self.model, alpha0=cast(float, usual["alpha0"]), lam=cast(float, usual["lam"]))

    @property
    def stage(self) -> Stage | None:
        """What is known of uploads of whole numbers."""
        if self.bits == 32:
            return None
        largest = float(announced_steps.levels(self.bits))
        return Stage(
            message_layout=self.message_layout, bound=largest, step=1.0, weight_step=1 / self.full_weight,
            leaves=tuple(self.trained),
        )  # fmt: skip

    @property
    def trained(self) -> list[str]:
        """Names of the shared parameters that are trained."""
        return ["item", "bias", *self.network_shapes, *(["theta"] if self.trail else [])]

    @property
    def full_weight(self) -> int:
        """The weight of as many positions, a power of two, is 1 where gradients are whole numbers."""
        return 1 << (self.length - 1).bit_length()

    def message_layout(self, total: Params) -> Params:
        """Tensors like those of a message: `bits` bits for every number of a gradient, and counts as they are."""
        if "item" not in total:  # counts, or the sums of the method of the factors
            return total
        return {n: torch.zeros(-(-v.numel() * self.bits // 8), dtype=torch.uint8) for n, v in total.items()}

    @property
    def recipe(self) -> Recipe:
        """How a bundle serves somebody, from the tables that `tables` gives."""
        trail = TrailRecipe(losses.MIX, losses.FAST, losses.SLOW, self.length) if self.trail else None
        sequence = SequenceRecipe(self.network, self.layers, self.heads, self.length, losses.EMBEDDED * self.width**0.5)
        return Recipe("sequence", trail=trail, sequence=sequence)

    def tables(self, shared: Params) -> Params:
        """E as "item", the biases as "offset", N as "trail" with its alpha and eps, and the "network"."""
        network = nest("network", select(shared, self.network_shapes))
        tables = {"item": shared["item"], "offset": shared["bias"]} | network
        if not self.trail:
            return tables
        return tables | select(shared, ("trail", "eps")) | {"alpha": losses.ALPHA * shared["theta"]}

    def init(self, params: Params) -> tuple[Params, Params]:
        seed = int(params["user"].view(torch.int32).long().sum()) + int(params["item"].view(torch.int32).long().sum())
        shared = {"item": params["item"], "bias": torch.zeros(self.items)}
        if self.start == "features" and self.features is not None:
            shared["item"] = embeddings(main_directions(self.features, self.width), params["item"])
        shared |= network_params(self.shape, torch.Generator().manual_seed(seed % 2**63))
        shared |= {"key": torch.tensor(seed % KEYS / KEYS), "items": torch.zeros(self.items)}
        if self.trail:
            shared |= {"theta": torch.tensor(THETA), "eps": torch.ones(())}
            shared |= {"trail": torch.zeros(self.items, self.items)}
            shared |= {"from_scale": torch.zeros(self.items), "to_scale": torch.zeros(self.items)}
        if self.start in BEFORE:
            shared |= nest("start", select(self.factors.init(params)[0], KEPT[self.start]))
        if self.bits < 32:
            shared[STEPS] = announced_steps.first_steps(len(self.trained), self.bits)
        return shared, {}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        if 0 < int(download.round) < self.counting:
            return self.factors.client(self.of_factors(download), own, examples)
        if int(download.round) < self.counting:
            return Upload(self.count(flat_examples(examples)), torch.ones(())), {}
        params = download.params
        context, weight = self.context(download, examples)
        gradient, _ = gradient_and_value(
            lambda moving: losses.sampled_softmax(self.shape, params | moving, context), select(params, self.trained)
        )
        total = {name: -value for name, value in gradient.items()}
        if self.bits == 32:
            return Upload(total, weight), {}
        seeds = losses.person_seeds(*self.history(examples), self.key(params), int(download.round))
        total = announced_steps.to_whole_numbers(total, params[STEPS], self.bits, seeds)
        return Upload(total, weight / self.full_weight), {}

    def of_factors(self, download: Download) -> Download:
        """What the method of the factors downloads."""
        return Download(unnest("start", download.params), download.round)

    def count(self, history: Examples) -> Params:
        """The counts of one person's history."""
        if not self.trail and self.start != "gram":
            return {"items": item_counts(history, self.items)}
        return self.counter.count(history, torch.zeros(()))

    def context(self, download: Download, examples: Examples) -> tuple[losses.Context, Tensor]:
        """(input of the loss, weight) of one person or of people along a leading axis."""
        params, drawn = download.params, self.draw(download, examples)
        steps, dropped = drawn.window.mask.shape[-1], self.dropped
        keep = target = negative = None
        if dropped:
            count = SKIPPED + steps * self.shape.sites * self.width
            keep = losses.keep_factors(losses.random_bytes(drawn.seeds, count)[..., SKIPPED:], self.shape, dropped)
        if self.trail:
            target = (losses.target_trail(params, drawn.window) + params["eps"]).log()
            negative = losses.negative_trail(params, drawn.window, drawn.negatives.items, drawn.places)
            negative = (negative + params["eps"]).log()
        context = losses.Context(drawn.window, keep, drawn.negatives, drawn.places, target, negative)
        return context, drawn.window.mask.sum(-1).clamp(min=1)

    def draw(self, download: Download, examples: Examples) -> Draw:
        """What a round draws for one person or for people along a leading axis."""
        params, number = download.params, int(download.round)
        (inputs, mask), key = self.history(examples), self.key(params)
        negatives = losses.shared_negatives(params["items"], self.negatives, key, number)
        seeds = losses.person_seeds(inputs, mask, key, number)
        window = losses.draw_window(inputs, mask, self.length, losses.random_bytes(seeds, SKIPPED))
        return Draw(seeds, window, negatives, losses.first_places(inputs, mask, self.items)[..., negatives.items])

    def history(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """(items, mask) [..., n]."""
        return examples.inputs.flatten(-2), examples.mask.flatten(-2)

    def key(self, params: Params) -> int:
        """The key of the run's public draws."""
        return int(params["key"] * KEYS)

    @property
    def dropped(self) -> int:
        """Of 256 random bytes, how many values drop a number."""
        return min(round(256 * self.hidden_dropout), 255)

    def server_with(self, step: ServerStep) -> ServerStep:
        """The server with this optimiser."""

        def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
            begun = {"begun": torch.ones(())}
            if self.start == "features" and self.features is None:  # only a server needs them
                raise SettingError(NO_FEATURES)
            if "items" in upload.total:  # in an update the schedule of the optimiser begins again
                after = self.learn_counts(shared, upload.total, begun=bool(memory))
                if self.start not in BEFORE:
                    return after, begun
                first = {} if memory else {"first": shared["item"]}  # a model that has begun keeps its embeddings
                if self.start == "als":
                    return after, begun | nest("start", first)
                found, inner = self.factors.server(self.factors.init(shared)[0], {}, upload)
                return after | {"start.basis": found["basis"]}, begun | nest("start", inner | first)
            if "item" not in upload.total:
                return self.learn_factors(shared, unnest("start", memory), upload)
            # Row by row, as a checkpoint has them: sums over numbers in another order would differ in the last bit.
            total, weight = {name: value.contiguous() for name, value in upload.total.items()}, upload.weight
            before = {name: shared[name].contiguous() for name in self.trained}
            announced: Params = {}
            if self.bits < 32:
                weight, people = weight * self.full_weight, self.cohort or COHORT
                total, announced[STEPS] = announced_steps.from_whole_numbers(total, shared[STEPS], self.bits, people)
            moved, inner = step(before, unnest("optimizer", memory), Upload(total, weight))
            return shared | moved | announced, begun | nest("optimizer", inner)

        return server

    def learn_counts(self, shared: Params, counts: Params, begun: bool) -> Params:
        """The fixed parameters, and those from which training starts unless it has `begun` (in an update)."""
        taken = counts["items"].float().clamp(min=0)  # noise may have made it negative
        after = shared | {"items": taken}
        if self.trail:
            table = normalise(counts, losses.FROM_POWER, losses.TO_POWER, losses.SHRINK)
            positive = table[table > 0]
            after |= {"trail": table, "eps": positive.median() / 2 if len(positive) else torch.ones(())}
            after["from_scale"] = (taken + losses.SHRINK) ** -losses.FROM_POWER
            after["to_scale"] = (taken + losses.SHRINK) ** -losses.TO_POWER
        if begun:
            return after
        after["bias"] = 0.5 * ((taken + 1) / (taken + 1).mean()).log()
        if self.start == "gram":
            factors = eigenfactors(counts, min(self.width, self.items))
            factors = torch.nn.functional.pad(factors.flip(1), (0, self.width - factors.shape[1]))
            after["item"] = embeddings(factors, shared["item"])
        return after

    def learn_factors(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        """The server's step of the method of the factors, and embeddings from the factors so far."""
        first, inner = memory.get("first"), {name: value for name, value in memory.items() if name != "first"}
        state = self.factors.init(shared)[0] | unnest("start", shared)
        found, after = self.factors.server(state, inner, upload)
        shared = shared | nest("start", select(found, KEPT[self.start]))
        if first is not None:
            after = after | {"first": first}
            size = found["item"].square().sum(1).mean().sqrt()
            shared["item"] = embeddings(found["item"] / torch.where(size > 0, size, 1.0), first)
        return shared, {"begun": torch.ones(())} | nest("start", after)

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        inputs, _, mask = flat_examples(examples)
        items, last = losses.newest(inputs, mask, self.length)
        x = shared["item"][items] * (losses.EMBEDDED * self.width**0.5)
        states = network_states(self.shape, shared, x)
        h = states.gather(-2, last.expand(1, self.width))[0]
        scores = shared["item"] @ h + shared["bias"]
        if self.trail:
            age = ages(mask)
            weight = mask * (age < self.length) * (losses.MIX * losses.FAST**age + (1 - losses.MIX) * losses.SLOW**age)
            trail = torch.zeros(self.items).index_add(0, inputs, weight) @ shared["trail"]
            scores = scores + losses.ALPHA * shared["theta"] * (trail + shared["eps"]).log()
        return {"item": scores[:, None], "user": torch.ones(1)}  # the model's product is the score itself

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort: compiled counts, or one batched backward pass."""
        if 0 < int(download.round) < self.counting:
            return self.factors.kernel(self.of_factors(download), cohort)
        if int(download.round) >= self.counting:
            descend = one_step_kernel(self.cohort_loss, 1.0, lambda _: self.trained, AT_ONCE, self.length + 1)
            return descend(download, cohort)
        people = torch.tensor(float(len(cohort.people)))
        if not self.trail and self.start != "gram":
            counts = np.bincount(cohort.examples.inputs, minlength=self.items).astype(np.float32)
            return Upload({"items": torch.from_numpy(counts)}, people), {}
        nothing, everybody = np.zeros(len(cohort.people), np.float32), np.ones(len(cohort.people), bool)
        return Upload(self.counter.cohort_counts(cohort.examples, nothing, everybody), people), {}

    def cohort_loss(self, download: Download, own: Params, examples: Examples) -> tuple[Tensor, Tensor]:
        """(losses, weights) [people] of a cohort."""
        drawn = self.draw(download, examples)
        dropout = packed_dropout(drawn.seeds, SKIPPED, drawn.window, self.shape, self.dropped)
        batch = Batch(drawn.window, dropout, drawn.negatives, drawn.places.int())
        return cohort_losses(self.shape, download.params, batch), drawn.window.mask.sum(1).clamp(min=1)


class Draw(NamedTuple):
    """What a round draws for people, by the names of losses.Context."""

    seeds: Tensor  # of each person's random bytes; the first SKIPPED are for the window, the others for dropout
    window: losses.Window
    negatives: losses.Negatives
    places: Tensor


def main_directions(features: Tensor, width: int) -> Tensor:
    """The coordinates [items, width] of centred features along their directions of most variance; zero beyond them."""
    centred = features.double() - features.double().mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    found = (left * sizes)[:, :width].float()
    return torch.nn.functional.pad(found, (0, width - found.shape[1]))


def embeddings(factors: Tensor, noise: Tensor) -> Tensor:
    """Embeddings at the start: factors [m, k] with rows of similar length, and half of a random table."""
    size: Tensor = torch.linalg.vector_norm(factors, dim=1, keepdim=True)
    return (0.5 * factors / (size + 0.05) + noise / 2).contiguous()


def _unread(task: str, values: Values) -> dict[str, str]:
    unread = {"loss": "its loss is a sampled softmax"}
    return unread | dict.fromkeys(("layers", "heads"), "network=gru has none") if values["network"] == "gru" else unread


def ranking_defaults(facts: PublicFacts) -> Values:
    """An even k where the catalogue has fewer items than the usual 64, since two heads divide it."""
    return {"k": min(WIDTH, max(2, facts.items // 2 * 2))}


fedseq = define(
    defaults={
        "ranking": {
            "k": WIDTH, "negatives": 768, "spread": 0.16, "patience": 0, "server": "adam-unbiased", "server_lr": 2e-3,
            "tau": 1e-8, "warmup": 100, "final_rate": 0.02, "max_norm": 1.0,
        }
    },
    scaled={"ranking": ranking_defaults},
    unread=_unread,
    search={
        "k": Choice((32, 64, 128)), "server_lr": Around(5), "hidden_dropout": Range(0.0, 0.5),
        "participations": LogRange(4, 32),
    },
)(FedSeq)  # fmt: skip
