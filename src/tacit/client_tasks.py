"""Tasks of clients that hold examples with features: regression and labels (tasks.py has those of people and items).

Labels: a fifth of every client's training examples, a seeded choice, chooses the round; then all of them are learnt
from and the test examples are read once. Every client is judged by its own model on its own test examples, and the
shared model, where it is whole without anything private, on the same ones. Means are over clients, each
counting the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.nn import functional

from .core import Method, Model, Params
from .data.interactions import count
from .data.sampling import SPLIT, Ragged, key_of, uniform
from .data.supervised import Supervised
from .engine.backends import chunks
from .engine.run import State
from .engine.store import Store
from .evaluation import protocol
from .evaluation.protocol import Judged
from .federation import Federation, of_arrays, pooled
from .tasks import Facts, People, Sampling, Task

FEW = 12  # clients that are shown one by one
Arrays = tuple[np.ndarray, ...]


def supervised(data: Supervised, *, seed: int) -> Task:
    """The task of data with features."""
    labels = data.task == "labels"
    everyone = np.arange(len(data.targets))
    kept = [_kept(len(y), person, seed) if labels else np.ones(len(y), bool) for person, y in enumerate(data.targets)]
    parts = {
        "search": tuple(tuple(x[k] for x, k in zip(a, kept)) for a in (data.features, data.targets)),
        "final": (data.features, data.targets),
        "valid": tuple(tuple(x[~k] for x, k in zip(a, kept)) for a in (data.features, data.targets)),
        "test": (data.test_features, data.test_targets),
    }
    choosers = np.flatnonzero([len(y) for y in parts["valid"][1]])
    judged = np.flatnonzero([len(y) for y in data.test_targets])
    learning = sum(len(y) > 0 for y in data.targets)

    def federation(phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        made = of_arrays(*parts[phase], batch=sampling.batch, seed=seed, names=data.clients)
        return pooled(made) if method.pooled else made

    def outcome(method: Method, model: Model, state: State, people: People, home: str, asked: str) -> Judged:
        outputs = predict(method, model, state.shared, state.private, people, parts[home], parts[asked][0])
        told = [parts[asked][1][person] for person in people]
        if not labels:
            errors = [guess - y for guess, y in zip(outputs, told)]
            owners = [np.full(len(y), person) for person, y in zip(people, told)]
            return protocol.judge_ratings(np.concatenate(errors), np.concatenate(owners), stars=False)
        metrics = _label_metrics(outputs, told)
        whole = shared_outputs(method, model, state.shared, [parts[asked][0][person] for person in people])
        if whole is not None:
            metrics |= {f"global_{name}": values for name, values in _label_metrics(whole, told).items()}
        return protocol.judge_clients(metrics, [len(y) for y in told])

    def chosen(method: Method, model: Model, state: State, sampling: Sampling) -> Judged:
        return outcome(method, model, state, choosers, "search", "valid")

    def validate(method: Method, model: Model, state: State, sampling: Sampling) -> dict[str, float]:
        values = chosen(method, model, state, sampling).values
        return {name: value for name, value in values.items() if name != "people"}

    def judge(
        method: Method, model: Model, state: State, sampling: Sampling, people: People, passes: int | None
    ) -> Judged:
        return outcome(method, model, state, people, "final", "test")

    def extra(method: Method, model: Model, state: State) -> dict[str, Any]:
        return _against_truth(data, method, model, state) | _by_client(data, judged, outcome, method, model, state)

    rows = sum(len(t) for t in (*data.targets, *data.test_targets))
    what = f"{data.width} features" if len(data.shape) == 1 else "pictures of " + " x ".join(map(str, data.shape))
    notes = (*data.notes, f"{count(len(everyone), 'client')} with {what} each.")
    if labels and len(judged) < protocol.MANY:
        notes += ("Intervals are over the clients' test examples: the clients themselves are few, and given.",)
    return Task(
        Facts(data.task, width=data.width, shape=data.shape, classes=data.classes, people=learning),
        len(everyone), rows, notes,
        federation, validate if labels and len(choosers) else None, judge, judged, everyone[:0], lambda: None,
        ("loss", -1) if labels else ("rmse", -1), extra, chosen,
    )  # fmt: skip


def _kept(examples: int, client: int, seed: int) -> np.ndarray:
    """Which of a client's training examples the search learns from: four fifths, all of fewer than five."""
    order = np.argsort(uniform(np.arange(examples), key_of(seed, SPLIT, 7 + client)), kind="stable")
    mask = np.ones(examples, bool)
    mask[order[: examples // 5]] = False
    return mask


def predict(
    method: Method, model: Model, shared: Params, store: Store, people: People, home: Any, inputs: Arrays
) -> list[np.ndarray]:
    """Outputs of each person's own model on their inputs, people of similar length at once. Who has nothing to learn
    from is served by the shared model, where it is whole."""
    if method.pooled:
        return shared_outputs(method, model, shared, [inputs[person] for person in people]) or []
    held = of_arrays(*home).examples(people, 0)
    asked = of_arrays(inputs, tuple(np.zeros(len(x)) for x in inputs)).examples(people, 0)
    found: list[Any] = [None] * len(people)

    def one(own: Params, examples: Any, x: torch.Tensor) -> torch.Tensor:
        return model.score(method.personalize(shared, own, examples), x)

    together = chunks(asked, 4 * asked.inputs[0].size)
    for chunk in np.arange(len(people))[:, None] if model.alone else together:
        wanted = asked.pad(chunk)
        scores = vmap(one)(store.gather(people[chunk]), held.pad(chunk), wanted.inputs[:, 0]).detach().numpy()
        for place, row in zip(chunk, scores):
            found[place] = row[: asked.lengths[place]].astype(float)
    for place in np.flatnonzero(held.lengths == 0):
        whole = shared_outputs(method, model, shared, [inputs[people[place]]])
        found[place] = found[place] if whole is None else whole[0]
    return found


def personal_outputs(method: Method, model: Model, state: State, data: Supervised) -> list[np.ndarray]:
    """What each client's own model says of that client's test examples, client by client; for one's own measures."""
    everyone = np.arange(len(data.targets))
    return predict(
        method, model, state.shared, state.private, everyone, (data.features, data.targets), data.test_features
    )


def shared_outputs(method: Method, model: Model, shared: Params, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    """Outputs of the shared model alone; None where something of it is private."""
    if not set(model.init(torch.Generator())) <= set(shared):
        return None
    return [model.score(shared, torch.from_numpy(x)).detach().numpy().astype(float) for x in inputs]


def _label_metrics(outputs: list[np.ndarray], told: list[np.ndarray]) -> dict[str, list[float]]:
    """Accuracy and mean cross-entropy, by client."""
    right, loss = [], []
    for scores, y in zip(outputs, told):
        scores = np.nan_to_num(scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], 1))
        target = torch.from_numpy(y.astype(np.int64))
        right.append(float((scores.argmax(1) == y).mean()))
        loss.append(float(functional.cross_entropy(torch.from_numpy(scores), target)))
    return {"accuracy": right, "loss": loss}


def _against_truth(data: Supervised, method: Method, model: Model, state: State) -> dict[str, Any]:
    """How far weights are from those that made the data, where these are known: everybody's own, and the shared."""
    if data.truth is None or "weight" not in model.init(torch.Generator()):
        return {}
    truth, shared = np.asarray(data.truth, float), state.shared.get("weight")
    if truth.shape == data.shape:
        if shared is None:
            return {}
        found = shared.double().numpy()
        weights = {"weights": found.round(6).tolist(), "true_weights": truth.round(6).tolist()}
        return weights | {"seen": {"weights_error": float(np.abs(found - truth).max())}}
    told = {} if shared is None else {"global_error": float(np.linalg.norm(shared.double().numpy() - truth.mean(0)))}
    gaps = []
    for person, own in _own_weights(data, method, state):
        scale = 1.0 if data.scales is None else np.asarray(data.scales[person], float)
        gaps.append(float(np.linalg.norm(own / scale - truth[person])))
    return {"seen": told | ({"personal_error": float(np.mean(gaps))} if gaps else {})}


def _own_weights(data: Supervised, method: Method, state: State) -> Iterator[tuple[int, np.ndarray]]:
    if method.pooled:
        return
    home = of_arrays(data.features, data.targets)
    for person in range(len(data.targets)):
        own = {name: value[0] for name, value in state.private.gather(np.array([person])).items()}
        held = home.examples(np.array([person]), 0)
        examples = held.pad()
        params = method.personalize(state.shared, own, type(examples)(*(x[0] for x in examples)))
        yield person, params["weight"].detach().double().numpy()


def _by_client(
    data: Supervised, judged: People, outcome: Any, method: Method, model: Model, state: State
) -> dict[str, Any]:
    """Every client's own line, where they are few."""
    if data.task != "labels" or not 1 < len(judged) <= FEW:
        return {}
    raw = outcome(method, model, state, judged, "final", "test").raw["metrics"]
    names = data.clients or [f"client {person}" for person in range(len(data.targets))]
    rows = []
    for place, person in enumerate(judged):
        line = {name: round(raw[name][place], 6) for name in ("accuracy", "global_accuracy") if name in raw}
        rows.append({"client": names[person], **line, "examples": len(data.targets[person])})
    return {"by_client": rows}


def examples_each(federation: Federation) -> float:
    """How many examples a client has, in the mean."""
    held: Ragged = federation.examples(federation.members, 0)
    return float(held.lengths.mean())
