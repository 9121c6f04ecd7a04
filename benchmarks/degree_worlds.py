"""Parts of benchmarks/degree.py: several federations trained as one, the released code's data, and closed forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import vmap
from torch.nn import functional

import fedtaste
from fedtaste import Download, Examples, Method, Model, State, Upload
from fedtaste.data.supervised import Supervised
from fedtaste.engine.run import begin
from fedtaste.federation import Federation

Array = NDArray[np.float64]


def two_classes(features: int, start: Array) -> Model:
    """fedtaste.logistic with given initial weights and a loss for two classes, which takes half the time."""

    def loss(params: fedtaste.Params, batch: Examples) -> torch.Tensor:
        margin = batch.inputs @ (params["weight"][1] - params["weight"][0])
        each = functional.softplus((1 - 2 * batch.targets) * margin)
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    begin = torch.from_numpy(np.array(start, np.float32))
    return replace(fedtaste.logistic(features), loss=loss, init=lambda generator: {"weight": begin.clone()})


def side_by_side(method: Method) -> Method:
    """Train independent federations as one, with the same results; every leaf has a first axis of federations. Client k
    is client k of all of them, with the same number of examples in each (`together`)."""

    def client(download: Download, own: fedtaste.Params, examples: Examples) -> tuple[Upload, fedtaste.Params]:
        inputs, targets = examples.inputs[..., :-1].movedim(-2, 0), examples.inputs[..., -1].movedim(-1, 0)
        each = Examples(inputs, targets, examples.mask.expand(targets.shape))
        upload, own = vmap(method.client, in_dims=(Download(0, None), 0, 0))(download, own, each)  # type: ignore[arg-type]
        return Upload(upload.total, upload.weight[0]), own

    def server(
        shared: fedtaste.Params, memory: fedtaste.Params, upload: Upload
    ) -> tuple[fedtaste.Params, fedtaste.Params]:
        worlds = next(iter(shared.values())).shape[0]
        return vmap(method.server)(shared, memory, Upload(upload.total, upload.weight.expand(worlds)))

    return Method(vmap(method.init), client, server)


def together(worlds: Sequence[Supervised]) -> Federation:
    """The examples of several data sets in one federation; the last feature is the target."""

    def client(k: int) -> Array:
        return np.stack([np.column_stack([w.features[k], w.targets[k]]) for w in worlds], 1)

    people = range(len(worlds[0].features))
    return fedtaste.of_arrays([client(k) for k in people], [np.zeros(len(worlds[0].targets[k])) for k in people])


def trained(
    method: Method, model: Model, federation: Federation, rounds: int, cohort: float | None = None,
    bend: torch.Tensor | None = None,
) -> Iterator[tuple[int, State, Array, Array]]:  # fmt: skip
    """(round, state, g, everybody's v) after every round. Without a shared model g is the mean of v; without own models
    v is g. `bend` is the curvature of every client, if it is known (`bends`)."""
    everybody, state = np.arange(federation.people), begin(method, model, federation)
    if bend is not None:
        state.private.put(everybody, state.private.gather(everybody) | {"bend": bend})
    for result in fedtaste.run(method, model, federation, rounds=rounds, cohort=cohort, state=state):
        own = result.state.private.gather(everybody)
        v = own.get("own.weight", own.get("weight"))
        g = result.state.shared.get("weight")
        g = v.mean(0) if g is None and v is not None else g
        v = g.expand(len(everybody), *g.shape) if v is None else v
        yield result.number, result.state, g.double().numpy(), v.double().numpy()


def last(*args: object, **more: object) -> tuple[State, Array, Array]:
    *_, end = trained(*args, **more)  # type: ignore[arg-type]
    return end[1:]


def bends(model: Model, federation: Federation, worlds: bool = False) -> torch.Tensor:
    """Every client's curvature as FedCLUP measures it, at zero weights, where that of a logistic loss is largest."""
    zero = replace(model, init=lambda generator: {n: torch.zeros_like(v) for n, v in model.init(generator).items()})
    method = fedtaste.fedclup(zero, lam=1.0, passes=1)
    state, *_ = last(side_by_side(method) if worlds else method, zero, federation, 1)
    return state.private.gather(np.arange(federation.people))["bend"]


def released(clients: int = 10, seed: int = 1) -> Supervised:
    """The data that the released code generates, without the first example (as there). True weights are for R = 1."""
    clients_data = []
    for k in range(clients):
        draw = np.random.RandomState(k + seed * clients)  # noqa: NPY002 (to reproduce its draws)
        truth, mean = draw.normal(0, 1, (2, 10)), draw.normal(0, 1, 10)
        x = draw.multivariate_normal(mean, np.diag(np.arange(1, 11) ** -1.2), size=200)
        y = (x @ truth.T).argmax(1)[1:]
        scale = x[1:].std(0)
        clients_data.append((x[1:] / scale, y, scale, truth))
    x, y, scales, truth = zip(*clients_data)
    return Supervised("released", "labels", x, y, x, y, np.stack(truth), (), classes=2, scales=scales)


def released_start() -> Array:
    return np.random.RandomState(1).randn(10, 2).T  # noqa: NPY002


def errors(data: Supervised, spread: float, g: Array, v: Array) -> tuple[float, float]:
    """(global, local): |g - mean W| and the mean of |v_i / scales_i - W_i|; `data.truth` is for R = 1."""
    truth = spread * np.asarray(data.truth, np.float64)
    own = v / np.stack(data.scales)[:, None, :]
    return float(np.linalg.norm(g - truth.mean(0))), float(np.linalg.norm(own - truth, axis=(1, 2)).mean())


class Quadratic:
    """Least squares in double precision: curvatures, the objective and its minimum for any lambda."""

    def __init__(self, data: Supervised) -> None:
        pairs = [(x.astype(np.float64), y.astype(np.float64)) for x, y in zip(data.features, data.targets)]
        self.bend = np.stack([2 * x.T @ x / len(x) for x, _ in pairs])
        self.pull = np.stack([2 * x.T @ y / len(x) for x, y in pairs])
        self.level = np.array([y @ y / len(y) for _, y in pairs])
        eigen = np.linalg.eigvalsh(self.bend)
        self.most, self.least = float(eigen.max()), float(eigen.min())

    def value(self, g: Array, v: Array, lam: float) -> float:
        fit = np.einsum("ki,kij,kj->k", v, self.bend, v) / 2 - (self.pull * v).sum(1) + self.level
        return float((fit + lam / 2 * ((v - g) ** 2).sum(1)).mean())

    def best(self, lam: float) -> tuple[Array, Array]:
        """(g, v) of the minimum: v_i = (H_i + lam)^-1 (b_i + lam g), and g is their mean."""
        inverse = np.linalg.inv(self.bend + lam * np.eye(self.bend.shape[1]))
        local = np.einsum("kij,kj->ki", inverse, self.pull)
        g = np.linalg.solve(np.eye(len(local[0])) - lam * inverse.mean(0), local.mean(0))
        return g, local + lam * inverse @ g
