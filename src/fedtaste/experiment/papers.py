"""The papers whose methods this project has: cases to train, published figures, and why ours differ from them.

`fedtaste reproduce PAPER` trains the cases of a paper at a size that ends within minutes. A figure is a path into a
RunResult: a metric's key (`new.rmse`), or `round 10: ndcg@10` and `round 1: loss`, which read the curve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedtaste.experiment.result import RunResult
from fedtaste.result_part import ResultPart

AT_ROUND = re.compile(r"round (\d+): (\S+)")


@dataclass(frozen=True)
class Case:
    """One training of a paper's table: its label, its settings, and the published figures by the name of ours."""

    label: str
    settings: Mapping[str, object]
    published: Mapping[str, float]


@dataclass(frozen=True)
class Paper:
    """A paper's main table as cases to train."""

    title: str
    figures: Mapping[str, str]  # name of a column -> where the figure is in a RunResult
    cases: tuple[Case, ...]
    differences: tuple[str, ...]
    axis: str  # of the plot: what is on its vertical axis
    reading: str  # what the labels and figures mean, and whether less is better


class ReproducedRow(ResultPart):
    """One case: our figures and the published ones."""

    label: str
    command: str
    ours: dict[str, float | None]
    published: dict[str, float]


class Reproduction(ResultPart):
    """What `fedtaste reproduce --json` prints."""

    paper: str
    title: str
    reading: str
    rows: tuple[ReproducedRow, ...]
    differences: tuple[str, ...]


def read_figure(result: RunResult, where: str) -> float | None:
    """A figure of a result; None where it was not measured."""
    if found := AT_ROUND.fullmatch(where):
        point = next((point for point in result.curve if point.round == int(found[1])), None)
        if point is None:
            return None
        return point.loss if found[2] == "loss" else (point.valid or {}).get(found[2])
    return result.metric(where)


def _fedclup_cases() -> tuple[Case, ...]:
    """FedAvg, three lambdas and local training, for three spreads of the clients."""
    published = {
        0.1: ((2.188, 5.220), (2.398, 6.972), (2.279, 5.874), (2.221, 5.336), (2.539, 8.607)),
        1.389: ((2.544, 7.483), (2.515, 7.143), (2.509, 7.168), (2.526, 7.469), (2.690, 8.089)),
        2.678: ((3.388, 12.10), (3.197, 10.62), (3.275, 11.32), (3.339, 12.01), (3.369, 10.83)),
    }
    methods = (
        ("FedAvg", "fedavg", {}),
        *((f"FedCLUP, lambda {lam}", "fedclup", {"lam": str(lam)}) for lam in (0.02, 0.1, 0.5)),
        ("local", "local", {}),
    )
    return tuple(
        Case(
            f"R {spread}: {label}",
            {"data": f"logistic:R={spread}", "method": method, "rounds": 50, "set": {"passes": "150", **settings}},
            {"personal error": personal} if method == "local" else {"shared error": shared, "personal error": personal},
        )
        for spread, figures in published.items()
        for (label, method, settings), (shared, personal) in zip(methods, figures)
    )


RATINGS = {"data": "ml-100k", "task": "ratings"}
PAPERS = {
    "federated-sgd": Paper(
        "FedSGD: ten clients, five features, linear regression (the worked example; McMahan et al. 2017)",
        {"largest error of a weight": "seen.weights_error"},
        (
            Case("FedSGD", {"data": "linear", "method": "fedsgd"}, {"largest error of a weight": 0.0}),
            Case("centralised", {"data": "linear", "method": "centralised"}, {"largest error of a weight": 0.0}),
        ),
        ("The data have no noise, so the true weights are the exact answer. The server stops when the parameters move "
         "by less than the tolerance, which leaves an error of about 1e-6.",),
        "largest error of a weight",
        "The largest distance of a learnt weight from the true one; less is better.",
    ),
    "fedrecon": Paper(
        "FedRecon: ratings of people who took no part in training (Singhal et al., NeurIPS 2021)",
        {"RMSE of new people": "new.rmse"},
        (
            Case("1 step of reconstruction", {**RATINGS, "method": "fedrecon", "set": {"recon_passes": "1"}},
                 {"RMSE of new people": 1.032}),
            Case("5 steps", {**RATINGS, "method": "fedrecon", "set": {"recon_passes": "5"}},
                 {"RMSE of new people": 0.996}),
            Case("10 steps", {**RATINGS, "method": "fedrecon", "set": {"recon_passes": "10"}},
                 {"RMSE of new people": 0.992}),
            Case("exact reconstruction (ours)", {**RATINGS, "method": "fedrecon", "set": {"solver": "exact"}}, {}),
            Case("FedALS (ours)", {**RATINGS, "method": "fedals"}, {}),
            Case("mean rating of an item", {**RATINGS, "method": "popularity"}, {}),
        ),
        ("Theirs are figures of a third party's program on ML-1M; the authors' table has no comparable split. Ours "
         "are on ML-100K, which has a tenth of the ratings.",
         "Ours have biases, batches of the whole history, an adaptive server, and support and query by example.",
         "Steps are varied in training and in evaluation, where the third party varied evaluation alone."),
        "RMSE of new people",
        "The root mean squared error of the ratings of people who took no part in training; less is better. A step "
        "of reconstruction is a gradient step with which a device computes its own vector.",
    ),
    "fedrap": Paper(
        "FedRAP: additive personalisation, and why its published figures are a leak (Li, Long, Zhou; ICLR 2024)",
        {"loss, round 1": "round 1: loss", "loss, round 2": "round 2: loss", "NDCG@10, round 10": "round 10: ndcg@10",
         "NDCG@10, round 20": "round 20: ndcg@10", "NDCG@10, round 30": "round 30: ndcg@10",
         "HR@10 of test items": "seen.sampled.hr@10"},
        (
            Case("as published", {"data": "ml-100k", "method": "fedrap", "protocol": "published", "rounds": 30},
                 {"loss, round 1": 0.252, "loss, round 2": 0.120, "NDCG@10, round 10": 0.413,
                  "NDCG@10, round 20": 0.657, "NDCG@10, round 30": 0.762, "HR@10 of test items": 0.937}),
            Case("the same settings, clean",
                 {"data": "ml-100k", "method": "fedrap", "rounds": 30, "set": {"released": "true"}}, {}),
            Case("popularity, clean", {"data": "ml-100k", "method": "popularity"}, {}),
        ),
        ("Theirs are from the authors' log (their issue 1). In their protocol held-out items are never drawn as "
         "negatives, so that a memory of the drawn negatives finds them: clean evaluation takes that away.",
         "The clean run chooses its round on validation; its curve is of validation items."),
        "NDCG@10",
        "HR@10 and NDCG@10 of held-out films among 99 sampled ones; more is better. The loss is that of training.",
    ),
    "fedclup": Paper(
        "FedCLUP: the degree of personalisation (Yu, He, Sun, Xue, Li; ICML 2025)",
        {"shared error": "seen.global_error", "personal error": "seen.personal_error"},
        _fedclup_cases(),
        ("The clients are drawn by our generator, from the same distribution as in the released code and not with the "
         "same numbers: look at which lambda is best for which R. `python benchmarks/degree.py parity` computes with "
         "the released code's own draws and agrees within 1 %.",
         "The released program takes one client's curvature for all and omits the server's step (docs/degree.md)."),
        "personal error",
        "R is how far the clients' true weights are from their mean; lambda pulls each client's model towards the "
        "shared one. Shared error: distance of the server's model from the mean of the true weights; personal error: "
        "mean distance of a client's model from its own true weights. Less is better.",
    ),
    "lgmix": Paper(
        "LG-Mix: clients whose features differ (Jiang, Le, Li, Dou; ICLR 2024)",
        {"accuracy": "seen.accuracy"},
        tuple(
            Case(label, {"data": "shifted-digits", "method": method}, published)
            for label, method, published in (
                ("LG-Mix", "lgmix", {"accuracy": 0.713}),
                ("local", "local", {"accuracy": 0.711}),
                ("FedAvg", "fedavg", {"accuracy": 0.554}),
                ("FedBN", "fedbn", {}),
                ("Ditto", "ditto", {}),
            )
        ),
        ("The paper's five data sets are not public in one place. Theirs are the released trainers, which we ran "
         "on five domains made from scikit-learn's digits, mean of two seeds; our network is smaller "
         "and keeps batches of equal size.",
         "Here LG-Mix is level with local training, and FedBN is ahead of both (docs/shift.md)."),
        "accuracy",
        "The mean accuracy of every client's own model on its own test images; more is better.",
    ),
}  # fmt: skip
