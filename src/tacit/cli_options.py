"""The options that `run` and `compare` share, and how they become settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from .errors import SettingError, did_you_mean

DataOption = Annotated[
    str,
    typer.Option(
        "--data", help="A name of `tacit data list`, a CSV or Parquet file, or a folder with train.csv and test.csv."
    ),
]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="ranking, ratings, regression or labels; told from the data when left out.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value, repeatable: a setting of the method, model or server, e.g. --set k=64."),
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Rounds at most.")]
CohortOption = Annotated[
    str | None,
    typer.Option(
        "--cohort", help="People asked in a round: a number, or a share such as 0.1. Everybody when left out."
    ),
]
DropoutOption = Annotated[
    float, typer.Option("--dropout", min=0.0, max=1.0, help="Share of those asked who do not answer.")
]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="clean, or published (the papers' rules; it leaks, and says so).")
]
SplitOption = Annotated[str, typer.Option("--split", help="leave-one-out, temporal or random.")]
NewOption = Annotated[
    str | None,
    typer.Option(
        "--new-people",
        help="Share of people kept out of training and judged as new (default 0.1), or `folds`: everybody is new once.",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option("--tolerance", help="Stop when a round changes the shared parameters by less than this share."),
]
PatienceOption = Annotated[
    int | None, typer.Option("--patience", help="Stop when validation has not gained for so many rounds; 0: never.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder (default: a new one under runs/).")]
DownloadOption = Annotated[
    str, typer.Option("--download", help="How tables are written into a download: dense, sparse, rows or int8.")
]
StoreOption = Annotated[
    str, typer.Option("--store", help="Where people's own item rows are kept: memory, or disk (in the run folder).")
]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, loop, vmap or kernel.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads to use.")]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Runs at a time (default: one for few runs, else one a core).")
]
WireOption = Annotated[
    str,
    typer.Option(
        "--wire",
        help="What happens to uploads, as in clip=1.0,noise=0.8,secure. In order: sparsify=0.1, quantise=8, clip=1.0, "
        "noise=0.8 (or local=1.0), secure (or secure=10); or, in place of the plain sum: bound, trim=0.1, median, "
        "krum=0.1.",
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option("--epsilon", help="What the run may cost a person: the noise is solved for. Smaller is more private."),
]
DeltaOption = Annotated[
    float | None, typer.Option("--delta", help="The chance that the promise fails (default min(people^-1.1, 1e-6)).")
]
NoiseSeedOption = Annotated[
    str | None,
    typer.Option(
        "--noise-seed",
        help="For studies: draw noise and coins from this number, so that they repeat. Then no epsilon is promised. "
        "When left out they are secret.",
    ),
]
PromiseOption = Annotated[bool, typer.Option("--promise", help="Refuse to run where no epsilon can be promised.")]
LedgerOption = Annotated[
    Path | None,
    typer.Option("--ledger", help="The privacy ledger of a private run (default: that of the data, in the cache)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Everything random follows from it.")]


def parse_set(pairs: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise SettingError(f'--set "{pair}" was got; expected key=value, as in --set k=64.')
        found[key.strip()] = value.strip()
    return found


def number(text: str, option: str, expected: str) -> int | float:
    """`10` a number of people, `0.1` a share of them."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise SettingError(f"{option} {text} was got; expected {expected}.") from None


def make_settings(**values: Any) -> Any:
    from .settings import Settings

    share, cohort = values["new_people"], values["cohort"]
    if share not in (None, "folds"):
        share = number(share, "--new-people", "a share such as 0.1, or folds")
        if not 0 <= share < 1:
            raise SettingError(f"--new-people {share} was got; expected a share from 0 to below 1, or folds.")
    if cohort is not None:
        cohort = number(cohort, "--cohort", "a number of people such as 100, or a share of them such as 0.1")
    values |= {"new_people": share, "cohort": cohort, "set": parse_set(values["set"])}
    values["noise_seed"] = noise_seed(values.get("noise_seed"))
    for name, low, high in (("dropout", 0, 1), ("tolerance", 0, 1), ("patience", 0, 2**31), ("seed", 0, 2**63 - 1)):
        if values[name] is not None and not low <= values[name] <= high:  # not a number is out of every range
            raise SettingError(f"--{name} {values[name]} was got; expected a number from {low} to {high}.")
    for name, known in (
        ("protocol", ("clean", "published")),
        ("split", ("leave-one-out", "temporal", "random")),
        ("task", ("ranking", "ratings", "regression", "labels")),
    ):
        if values[name] is not None and values[name] not in known:
            raise SettingError(did_you_mean(values[name], known, name))
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingError(
            f"--{str(first['loc'][0]).replace('_', '-')} {first.get('input')}: {first['msg']}."
        ) from None


def parse_budgets(text: str | None) -> list[float | None]:
    """`1,3,10,none` -> numbers, and None for no noise."""
    found: list[float | None] = []
    for part in (text or "none").split(","):
        try:
            found.append(None if part.strip() in ("none", "inf") else float(part))
        except ValueError:
            raise SettingError(f"--epsilon {text} was got; numbers are expected, as in 1,3,10, or none.") from None
    return list(dict.fromkeys(found))


def noise_seed(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "secret":
        raise SettingError("Noise is secret unless a number is given. Leave --noise-seed out.")
    if not text.isdecimal() or int(text) >= 2**63:
        raise SettingError(f"--noise-seed must be a whole number below 2^63, got {text}.")
    return int(text)


def refuse_idle(settings: Any, task: Any) -> None:
    """An option that this one run would not read is refused; in a comparison some methods may read it."""
    import torch

    from .settings import plan

    if settings.store == "memory" and settings.download == "dense":
        return
    made = plan(settings, task.facts)
    shared, private = made.method.init(made.model.init(torch.Generator()))
    if settings.store != "memory" and not set(private) & set(made.method.rows):
        raise SettingError(f"--store disk would change nothing: {settings.method} keeps no own rows. Leave it out.")
    if settings.download != "dense" and not any(v.ndim == 2 and v.dtype == torch.float32 for v in shared.values()):
        raise SettingError(
            f"--download {settings.download} would change nothing: {settings.method} downloads no table. Leave it out."
        )


def check(settings: Any, task: Any) -> None:
    """Everything that can be wrong is found before a folder is made."""
    from .costs import threads
    from .data.splits import folds
    from .engine.backends import choose
    from .experiment import FOLDS
    from .federation import cohort_size
    from .promises import require_cohort
    from .settings import plan

    made = plan(settings, task.facts)
    require_cohort(made.wire.mechanism, max(task.facts.people, 1), made.rounds, made.delta)
    threads(settings.threads)
    choose(settings.backend, made.method, made.wire.stage)
    if not len(task.seen):
        raise SettingError(f"--new-people {settings.new_people} leaves nobody to learn from. Give a smaller share.")
    if settings.cohort is not None:  # it must fit the phase with the fewest people
        number = folds(task.people, FOLDS, settings.seed)
        left_out = [(number == fold).nonzero()[0] for fold in range(FOLDS)] if settings.folds else []
        parts = [task.federation("search", made.method, made.sampling, without) for without in [None, *left_out]]
        cohort_size(settings.cohort, min(len(part.members) for part in parts))


def foretell(settings: Any, task: Any) -> None:
    """Say before a run with noise what is to be expected of it."""
    from .settings import plan
    from .terminal import say
    from .wire.accounting import epsilons

    made = plan(settings, task.facts)
    if made.wire.mechanism is None:
        return
    spent = epsilons(made.wire.mechanism, made.rounds, made.delta)["epsilon"]
    noise, many = made.wire.mechanism.noise, f"{made.rounds} round{'s' * (made.rounds > 1)}"
    told = f"epsilon {spent:.3g}, delta {made.delta:.2g} after {many}"
    if settings.noise_seed is not None:
        told = f"no epsilon is promised, since the noise is repeatable (with secret noise: {told})"
    say(f"Noise {noise:.3g} x the bound: {told}.")
    if made.predictor:
        say(made.predictor["advice"])


def wanted_runs(
    methods: str | None, method: str | None, sweep: str | None, known: list[str]
) -> list[tuple[str, dict[str, str]]]:
    """(method, settings of its own) of every run of a comparison."""
    if sweep:
        key, equals, values = sweep.partition("=")
        if not (key.strip() and equals and values.strip(", ") and method):
            raise SettingError("A sweep needs one method and values: --method fedals --sweep lam=0.003,0.01,0.03.")
        swept = [(method, {key.strip(): v}) for v in dict.fromkeys(map(str.strip, values.split(","))) if v]
        return swept + (wanted_runs(methods, None, None, known) if methods else [])
    if method or methods is None or not methods.strip(", "):
        raise SettingError(
            "Say what to compare: --methods popularity,fedals, or --methods all, or --method NAME --sweep k=8,32."
        )
    names = known if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    return [(name, {}) for name in dict.fromkeys(names)]
