"""Typed results of `fedtaste tune`: every trial, the best settings beside the defaults, importances and costs."""

from __future__ import annotations

from typing import Literal

from fedtaste.result_part import Count, ResultPart


class StudyHeader(ResultPart):
    """In settings.json of a study: what it searches, and how long."""

    space: dict[str, str]
    """The values that are searched, by setting."""
    own_space: dict[str, str]
    """Those that the user gave."""
    trials: Count
    minutes: float | None
    final: str | None
    """The folder of the run that is trained with the best settings at the end, where one was asked for."""


class TuneTrial(ResultPart):
    """One trial: a training with these settings on the training part, measured on the validation data."""

    number: Count
    settings: dict[str, object]
    """The settings that were chosen for this trial; none for trial 0, which has the defaults."""
    state: Literal["complete", "pruned", "failed"]
    """Pruned: stopped early, because it was worse than most trials at the same round. Failed: diverged or refused."""
    valid: float | None
    """The validation metric of the best round; of a pruned trial, of the best round until then."""
    best_round: Count
    rounds: Count
    """Rounds that were trained; 0 where the settings equal those of an earlier trial, whose figures are repeated."""
    up_bytes: Count
    down_bytes: Count
    seconds: float
    """CPU seconds of the training."""
    reason: str = ""
    """Why a failed trial failed."""


class TuneCost(ResultPart):
    """What all trials of a study cost, apart from the training of the final model."""

    trials: Count
    rounds: Count
    up_bytes: Count
    down_bytes: Count
    seconds: float
    """CPU seconds of training."""


class Tuning(ResultPart):
    """In the result of a run whose settings were tuned: the study, its choice, and what it cost. The traffic of the run
    does not include these costs."""

    study: str
    """The folder of the study."""
    metric: str
    valid: float
    """The validation metric of the chosen settings."""
    valid_of_defaults: float | None
    settings: dict[str, object]
    """The settings that were chosen; none where no trial was better than the defaults."""
    cost: TuneCost

    def sentence(self) -> str:
        """What a reader of the result should know."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        choice = f"The settings {chosen} were chosen" if chosen else "The defaults were kept"
        defaults = "" if self.valid_of_defaults is None else f", {self.valid_of_defaults:.3f} with the defaults"
        cost = self.cost
        return (
            f"{choice} by {cost.trials:,} trials on validation data ({self.metric} {self.valid:.3f}{defaults}). The "
            f"trials took {cost.rounds:,} rounds, {cost.up_bytes:,} bytes up and {cost.down_bytes:,} down, which the "
            "traffic of this run does not include."
        )


class TuneResult(ResultPart):
    """The result of `fedtaste tune`."""

    data: str
    task: str
    method: str
    seed: int
    metric: str
    """The validation metric that chooses."""
    better: Literal["higher", "lower"]
    space: dict[str, str]
    """The values that were searched, by setting."""
    requested: Count
    """The trials that were asked for; fewer were run where `stopped` says why."""
    stopped: str
    trials: tuple[TuneTrial, ...]
    best: Count
    """The number of the best trial; 0: no trial was better than the defaults."""
    defaults: dict[str, object]
    """The defaults of the searched settings."""
    settings: dict[str, object]
    """The best values of the searched settings."""
    valid: float
    """The validation metric of the best trial."""
    valid_of_defaults: float | None
    importances: dict[str, float]
    """Shares of the variation between trials that settings explain (fANOVA); none for fewer than four full trials."""
    cost: TuneCost
    notes: tuple[str, ...]
    study: str
    """The folder of the study."""
    config: str
    """The file run.toml with the best settings, for `fedtaste run --config`."""
    final: str | None = None
    """The folder of the run that was trained with the best settings, where one was asked for."""

    def tuning(self) -> Tuning:
        """What the result of a run with the best settings says about the study."""
        chosen = self.settings if self.best else {}
        return Tuning(
            study=self.study, metric=self.metric, valid=self.valid, valid_of_defaults=self.valid_of_defaults,
            settings=chosen, cost=self.cost,
        )  # fmt: skip
