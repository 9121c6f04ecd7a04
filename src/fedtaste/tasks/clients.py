"""The task of clients that hold examples with features: regression, and classification by labels.

Labels: a fifth of every client's training examples, a seeded choice, chooses the round; then all of them are learnt
from and the test examples are read once. Every client's own model is evaluated on its own test examples, and the shared
model, where it is complete without anything private, on the same ones. Means are over clients, each counting the same.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import vmap
from torch.nn import functional

from fedtaste.core import Examples, Method, Model, Params, People
from fedtaste.data.sampling import SPLIT, key_of, uniform
from fedtaste.data.supervised import Supervised
from fedtaste.engine.backends import chunks
from fedtaste.engine.run import State
from fedtaste.evaluation.protocol import MANY, ClientMetrics, PredictionErrors
from fedtaste.federation import Federation, of_arrays, pooled
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Facts, Sampling, Served, Task
from fedtaste.text import count

FEW = 12  # clients that are shown one by one
Arrays = tuple[np.ndarray, ...]
Part = tuple[Arrays, Arrays]  # (features, targets) by client


class Clients(Task):
    """Regression, or classification by labels, on the features that each client holds."""

    def __init__(self, data: Supervised, *, seed: int) -> None:
        self.data, self.seed, self.labels = data, seed, data.task == "labels"
        self.people = len(data.targets)
        masks = [np.ones(len(y), bool) for y in data.targets]
        if self.labels:
            masks = [_search_mask(len(y), client, seed) for client, y in enumerate(data.targets)]
        self.parts: dict[str, Part] = {
            "search": _masked(data, masks),
            "final": (data.features, data.targets),
            "valid": _masked(data, [~mask for mask in masks]),
            "test": (data.test_features, data.test_targets),
        }
        self.choosers = np.flatnonzero([len(y) for y in self.parts["valid"][1]])
        self.evaluated = np.flatnonzero([len(y) for y in data.test_targets])
        self.newcomers = np.zeros(0, np.int64)
        self.validates = self.labels and bool(len(self.choosers))
        self.selection = ("loss", -1) if self.labels else ("rmse", -1)
        self.interactions = sum(len(y) for y in (*data.targets, *data.test_targets))
        learners = sum(len(y) > 0 for y in data.targets)
        self.facts = Facts(data.task, width=data.width, shape=data.shape, classes=data.classes, people=learners)
        what = f"{data.width} features" if len(data.shape) == 1 else "pictures of " + " x ".join(map(str, data.shape))
        self.notes = (*data.notes, f"{count(self.people, 'client')} with {what} each.")
        if self.labels and len(self.evaluated) < MANY:
            self.notes += ("Intervals are over the clients' test examples: the clients themselves are few, and given.",)

    def federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        federation = of_arrays(*self.parts[phase], batch=sampling.batch, seed=self.seed, names=self.data.clients)
        return pooled(federation) if method.pooled else federation

    def validation(self, served: Served) -> PredictionErrors | ClientMetrics:
        return self._metrics(served, self.choosers, "search", "valid")

    def evaluate(self, served: Served, people: People, passes: int | None) -> PredictionErrors | ClientMetrics:
        return self._metrics(served, people, "final", "test")

    def _metrics(self, served: Served, people: People, train: str, test: str) -> PredictionErrors | ClientMetrics:
        """Metrics of these clients' own models, and of the shared model where it is complete, on the part `test`."""
        inputs, answers = self.parts[test]
        outputs = predict(served, people, self.parts[train], inputs)
        targets = [answers[person] for person in people]
        if not self.labels:
            errors = np.concatenate([guess - y for guess, y in zip(outputs, targets)])
            owners = np.concatenate([np.full(len(y), person) for person, y in zip(people, targets)])
            return PredictionErrors(errors.tolist(), owners.tolist(), stars=False)
        metrics = _label_metrics(outputs, targets)
        shared = shared_outputs(served, [inputs[person] for person in people])
        if shared is not None:
            metrics |= {f"global_{name}": values for name, values in _label_metrics(shared, targets).items()}
        return ClientMetrics(metrics, [len(y) for y in targets])

    def extra(self, served: Served) -> JsonObject:
        return _against_truth(self.data, served) | self._by_client(served)

    def _by_client(self, served: Served) -> JsonObject:
        """A row for every client, where they are few."""
        if not self.labels or not 1 < len(self.evaluated) <= FEW:
            return {}
        evaluation = self.evaluate(served, self.evaluated, None)
        assert isinstance(evaluation, ClientMetrics)
        names = self.data.clients or [f"client {person}" for person in range(self.people)]
        rows = []
        for place, person in enumerate(self.evaluated):
            row = {n: round(v[place], 6) for n, v in evaluation.metrics.items() if n in ("accuracy", "global_accuracy")}
            rows.append({"client": names[person], **row, "examples": len(self.data.targets[person])})
        return {"by_client": rows}


def _search_mask(examples: int, client: int, seed: int) -> NDArray[np.bool_]:
    """Which of a client's training examples the search learns from: four fifths, all of fewer than five."""
    order = np.argsort(uniform(np.arange(examples), key_of(seed, SPLIT, 7 + client)), kind="stable")
    mask = np.ones(examples, bool)
    mask[order[: examples // 5]] = False
    return mask


def _masked(data: Supervised, masks: list[NDArray[np.bool_]]) -> Part:
    """The training examples for which each client's mask holds."""
    features, targets = ((x[m] for x, m in zip(arrays, masks)) for arrays in (data.features, data.targets))
    return tuple(features), tuple(targets)


def predict(served: Served, people: People, train: Part, inputs: Arrays) -> list[np.ndarray]:
    """Outputs of each client's own model on their inputs, clients of similar length at once. `train` is what clients
    are personalised with; a client that has nothing is served by the shared model, where it is complete."""
    method, model, state = served.method, served.model, served.state
    if method.pooled:
        return shared_outputs(served, [inputs[person] for person in people]) or []
    examples = of_arrays(*train).examples(people, 0, method.examples)
    queries = of_arrays(inputs, tuple(np.zeros(len(x)) for x in inputs)).examples(people, 0, method.examples)
    outputs: list[np.ndarray] = [np.zeros(0)] * len(people)

    def score(own: Params, examples: Examples, x: torch.Tensor) -> torch.Tensor:
        return model.score(method.personalize(state.shared, own, examples), x)

    together = chunks(queries, 4 * queries.inputs[0].size)
    for chunk in np.arange(len(people))[:, None] if model.alone else together:
        padded = queries.pad(chunk).inputs[:, 0]
        scores = vmap(score)(state.private.gather(people[chunk]), examples.pad(chunk), padded).detach().numpy()
        for place, row in zip(chunk, scores):
            outputs[place] = row[: queries.lengths[place]].astype(float)
    for place in np.flatnonzero(examples.lengths == 0):
        by_shared = shared_outputs(served, [inputs[people[place]]])
        outputs[place] = outputs[place] if by_shared is None else by_shared[0]
    return outputs


def personal_outputs(method: Method, model: Model, state: State, data: Supervised) -> list[np.ndarray]:
    """Outputs of each client's own model on that client's test examples, for metrics of your own."""
    everyone, train = np.arange(len(data.targets)), (data.features, data.targets)
    return predict(Served(method, model, state), everyone, train, data.test_features)


def shared_outputs(served: Served, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    """Outputs of the shared model by itself; None where a part of it is private."""
    model, shared = served.model, served.state.shared
    if not set(model.init(torch.Generator())) <= set(shared):
        return None
    return [model.score(shared, torch.from_numpy(x)).detach().numpy().astype(float) for x in inputs]


def _label_metrics(outputs: list[np.ndarray], targets: list[np.ndarray]) -> dict[str, list[float]]:
    """Accuracy and mean cross-entropy, by client."""
    right, loss = [], []
    for scores, y in zip(outputs, targets):
        scores = np.nan_to_num(scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], 1))
        target = torch.from_numpy(y.astype(np.int64))
        right.append(float((scores.argmax(1) == y).mean()))
        loss.append(float(functional.cross_entropy(torch.from_numpy(scores), target)))
    return {"accuracy": right, "loss": loss}


def _against_truth(data: Supervised, served: Served) -> JsonObject:
    """Distances of the shared and of the clients' own weights from those that generated the data, where known."""
    if data.truth is None or "weight" not in served.model.init(torch.Generator()):
        return {}
    truth, shared = np.asarray(data.truth, float), served.state.shared.get("weight")
    if truth.shape == data.shape:
        if shared is None:
            return {}
        weights = shared.double().numpy()
        both = {"weights": weights.round(6).tolist(), "true_weights": truth.round(6).tolist()}
        return both | {"seen": {"weights_error": float(np.abs(weights - truth).max())}}
    errors = {} if shared is None else {"global_error": float(np.linalg.norm(shared.double().numpy() - truth.mean(0)))}
    method, clients, gaps = served.method, of_arrays(data.features, data.targets), []
    for client in range(0 if method.pooled else len(data.targets)):
        own = {name: value[0] for name, value in served.state.private.gather(np.array([client])).items()}
        examples = Examples(*(x[0] for x in clients.examples(np.array([client]), 0, method.examples).pad()))
        weights = method.personalize(served.state.shared, own, examples)["weight"].detach().double().numpy()
        scale = np.asarray(data.scales[client], float) if data.scales else 1.0
        gaps.append(float(np.linalg.norm(weights / scale - truth[client])))
    return {"seen": errors | ({"personal_error": float(np.mean(gaps))} if gaps else {})}
