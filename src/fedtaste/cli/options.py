"""The options of every command as pydantic models. The settings of an experiment are in experiment/settings.py.

A new option is one field, here or there: its type and bounds check it, its docstring is its help text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from fedtaste.cli.parser import Command
from fedtaste.event_log import LogFormat
from fedtaste.experiment.settings import (
    Cli,
    FederationSettings,
    Options,
    Positive,
    ReadSettings,
    Seed,
    Settings,
    TrackerName,
)

FolderArgument = Annotated[Path, Cli(argument=True, metavar="RUN")]


class JsonOptions(Options):
    """A command that can print JSON."""

    as_json: Annotated[bool, Cli(("--json",))] = False
    """Print one JSON object and nothing else on standard output."""


class OutOptions(JsonOptions):
    """A command that writes a folder."""

    out: Path | None = None
    """The folder to write (default: a new one under runs/)."""


class FileOptions(Options):
    """A command that writes a file of the user's choice."""

    force: bool = False
    """Replace the file to be written where it exists. Data that are read are never replaced."""


class TrainingOptions(OutOptions):
    """A command that trains, and may enter private runs into a ledger."""

    ledger: Path | None = None
    """The privacy ledger of private runs (default: that of the data, in the cache)."""


class TrackedOptions(TrainingOptions):
    """A command whose runs may be tracked by TensorBoard or MLflow."""

    track: TrackerName | None = None
    """Write settings, metrics by round and the report for tensorboard or mlflow, into the run folder."""
    track_to: Annotated[str | None, Cli(metavar="URI")] = None
    """With --track mlflow: a tracking address in place of the run folder, as in http://localhost:5000."""


class SeedsOptions(TrackedOptions):
    """A command that can train with several seeds."""

    seeds: Annotated[int, Ge(1), Le(1000)] = 1
    """Train with this many seeds, from --seed on: means, spread over seeds, and differences paired by person."""


class RunOptions(SeedsOptions):
    """Train one method on one data set: a result table, and a run folder that can be resumed."""

    from_model: Annotated[Path | None, Cli(("--from",), metavar="PATH")] = None
    """Continue the model of a run or a fit with --data, and evaluate the update on items that it had not seen."""
    tune: Annotated[int, Ge(1)] | None = None
    """First search the settings by so many trials on validation data, as `fedtaste tune` does, and train with the best
    ones. The study is in a folder beside that of the run."""


class FitOptions(TrackedOptions):
    """Train a model for production on everything and everybody, or continue one with new data.

    Nothing is held out, so nothing is measured: `fedtaste run` with the same options measures. The number of rounds is
    chosen on everybody's newest item first, unless --rounds gives it.
    """

    like: Path | None = None
    """Take the settings of this run folder, and as many rounds as its validation chose."""
    from_model: Annotated[Path | None, Cli(("--from",), metavar="MODEL")] = None
    """Continue this fitted model with --data: new interactions, people and items."""


class CompareOptions(SeedsOptions):
    """Train several methods, or one over a sweep of a setting, on the same data: one table and one report."""

    methods: Annotated[tuple[str, ...], Cli(commas=True)] = ()
    """Names of methods with commas between them, or all; or auto, which tries the few that suit the data."""
    minutes: Positive | None = None
    """With --methods auto: the time that trying methods may take (default: 5)."""
    method: str | None = None
    """The one method of a sweep."""
    sweep: tuple[str, ...] = ()
    """key=v1,v2,...: train the method of --method once for every value; with several keys, for every combination.
    Validation chooses one. --methods may stand beside it."""
    runs: Annotated[tuple[Path, ...], Cli(commas=True, metavar="RUN,...")] = ()
    """Train nothing: compare these finished runs of the same data and split, person by person."""
    epsilon: Annotated[tuple[Positive | Literal["none", "inf"], ...], Cli(commas=True, metavar="NUMBER,...")] = ()
    """One privacy budget or several, as in 1,3,10,none: every method is trained with each of them."""
    axes: Annotated[tuple[str, ...], Cli(commas=True)] = ()
    """Compare runs on these axes at once: accuracy,bytes,epsilon (also rounds, gradients)."""
    jobs: Annotated[int, Ge(1)] | None = None
    """Runs at a time (default: one for few runs, otherwise one per core)."""

    @property
    def budgets(self) -> list[float | None]:
        """The privacy budgets, each once; None is a run without noise."""
        return list(dict.fromkeys(None if isinstance(value, str) else value for value in self.epsilon or ("none",)))


class TuneOptions(OutOptions):
    """Search the settings of a method on validation data: the best ones, a report and a run.toml.

    A trial is the training of the search phase of `fedtaste run`; test data are not read. Trial 0 has the defaults. The
    folder is a study: `fedtaste resume` continues it, and so does the same command with the same --out, also with more
    --trials.
    """

    trials: Annotated[int, Ge(1)] = 30
    """The number of trials, that of the defaults included."""
    space: Annotated[dict[str, str], Cli(metavar="KEY=VALUES", example="--space lam=0.001..0.1")] = {}
    """The values to try of a setting: a range as in lam=0.001..0.1 (on a logarithmic scale where its ends differ by a
    factor of 10), or a list as in k=16,32,64. Other settings keep the values to try that the method names; --set fixes
    one."""
    jobs: Annotated[int, Ge(1)] = 1
    """Processes that run trials at the same time. With more than one, results are not repeatable."""
    minutes: Positive | None = None
    """Begin no trial, and stop the running one, after so many minutes."""
    final: bool = False
    """Then train with the best settings, as `fedtaste run` does, and read the test data, once."""


class FederateOptions(FederationSettings, TrainingOptions):
    """Train as `fedtaste run` does, as a real federation over Flower, with TLS and node keys."""

    write_app: Path | None = None
    """Run nothing: write the Flower app, keys and commands for real machines into this folder."""
    catalogue: Path | None = None
    """With --write-app, in place of --data: a file of items, with columns item, title, genres."""
    log: LogFormat = "text"
    """json: events and rounds as one line of JSON each, on standard error."""

    @property
    def federation(self) -> FederationSettings:
        """The part that the federation itself needs."""
        return FederationSettings(**{name: getattr(self, name) for name in FederationSettings.model_fields})


class AuditOptions(OutOptions):
    """Attack the uploads that a configuration really produces, and show what a server learns about people."""

    rounds: Annotated[int, Ge(1)] | None = None
    """Items are guessed from the uploads of rounds 1 to this one (default: 1)."""
    run_rounds: Annotated[int, Ge(1)] | None = None
    """Rounds of the audited run, as in `run --rounds`; the method has a default."""
    people: Annotated[int, Ge(2)] = 300
    """The largest number of people who are audited. Two are needed: an attack is chosen on other people."""
    canaries: Annotated[int, Ge(0)] | None = None
    """People added for the membership test, from 20 to 2000; 0 skips the test."""
    uploads: Path | None = None
    """Attack saved uploads: a folder with one message per person, or one file."""
    truth: Path | None = None
    """With --uploads: people's real lists, a CSV with columns user and item (default: truth.csv in the folder)."""
    save: Path | None = None
    """Write the uploads that are attacked into this folder, with people's real lists."""


class PoisonOptions(JsonOptions):
    """Let some people turn hostile, and measure what they achieve with a plain sum and with a robust one."""

    method: str = "fedmf"
    """A method that shares item factors."""
    hostile: Annotated[float, Gt(0), Le(0.5)] = 0.05
    """The share of people who turn hostile."""
    attack: Literal["promote", "profiles", "random", "flip"] = "promote"
    """What hostile people do."""
    wire: tuple[str, ...] = ()
    """A rule of the server to defend with: bound, trim=0.1, median, krum=0.1."""
    targets: int = 1
    """The number of unpopular items, each attacked in a run of its own."""
    top: Annotated[int, Cli(("-k", "--top"))] = 10
    """The length of the list that the target should enter."""
    size: float | None = None
    """How many times larger than an honest upload a crafted one is."""


class FolderOptions(JsonOptions):
    """A command that reads a run folder, whose method may be the user's own."""

    path: FolderArgument
    method: str | None = None
    """For a run of a method of your own (package.module:function): name it again, and it is imported. Without this
    option no code is imported because a folder names it."""


class ResumeOptions(FolderOptions):
    """Resume a run or a comparison that was interrupted; the result is the same as without the interruption."""

    worker: Annotated[bool, Cli(hidden=True)] = False
    """Started by a comparison: write no report, read further folders from standard input, and stop when it closes."""


class ReportOptions(JsonOptions):
    """Write the HTML report of a finished run or comparison again, and show its table."""

    path: FolderArgument


class RecommendOptions(FileOptions, FolderOptions):
    """Recommend items to a person of the data, or to a new one from what they like. Nothing is sent anywhere."""

    likes: tuple[str, ...] = ()
    """A title that a new person likes."""
    person: str | None = None
    """A person of the data, by name."""
    file: Annotated[Path | None, Cli(("--from",))] = None
    """A new person's CSV, with columns title, rating, timestamp; low ratings are dislikes where the model ranks."""
    n: Annotated[int, Cli(("-n", "--n"))] = 10
    """The number of items."""
    only: tuple[str, ...] = ()
    """An item that may be recommended, by name or title, or @FILE with one in each line."""
    exclude: tuple[str, ...] = ()
    """An item that is not recommended, or @FILE with one in each line."""
    all: Annotated[bool, Cli(("--all",))] = False
    """Recommend to everybody in the data, into the file of --out."""
    out: Path | None = None
    """With --all: a .parquet, .csv, .csv.gz or .jsonl file with user, item, rank and score."""


class SimilarOptions(FolderOptions):
    """Show the items that are most similar to one item. RUN is a run folder, a fitted model or a bundle."""

    item: Annotated[str, Cli(argument=True, metavar="ITEM")]
    n: Annotated[int, Cli(("-n", "--n"))] = 5
    """The number of items."""


class ExportOptions(FolderOptions):
    """Write a static folder with a page that recommends in the browser. Any web server can host it."""

    to: Annotated[Path, Cli(argument=True, metavar="DIR")]
    float32: bool = False
    """Store four bytes per number; the default is one."""


class ListenOptions(JsonOptions):
    """A command that answers HTTP requests."""

    host: str = "127.0.0.1"
    """The address to listen on: this machine alone, unless another is given. 0.0.0.0 means every address of this
    machine, and needs --allow-host. There is no TLS and no password: put a proxy in front."""
    port: Annotated[int, Ge(0), Le(65535)] = 8700
    """The port to listen on; 0 picks a free one."""
    allow_host: tuple[str, ...] = ()
    """A further host name to answer for, as behind a proxy."""
    allow_metrics: Annotated[tuple[str, ...], Cli(metavar="NETWORK")] = ()
    """An address or a network that may read /metrics, besides programs of this machine."""
    log: LogFormat = "text"
    """json: events as one line of JSON each, on standard error. Nothing about a request is logged."""


class ServeOptions(FolderOptions, ListenOptions):
    """Host the page on this machine alone: everything is computed in the browser. Nothing about a request is logged."""

    api: bool = False
    """Answer POST /v1/recommend and /v1/similar too; see /v1/openapi.json."""
    processes: Annotated[int, Ge(1), Le(64)] | None = None
    """Processes that answer (default: with --api one for every core, at most 4)."""


class MonitorOptions(ListenOptions):
    """Answer /health and /metrics about a federation, for its server (a run folder) or a node (its store)."""

    path: Annotated[Path, Cli(argument=True, metavar="FOLDER")]
    port: Annotated[int, Ge(0), Le(65535)] = 8800
    """The port to listen on; 0 picks a free one."""


class BenchOptions(FileOptions, JsonOptions):
    """Measure the CPU time of one round by loop, vmap and kernel, and how it grows with the interactions."""

    quick: bool = False
    """Smaller data sets: a minute instead of several."""
    method: str | None = None
    """fedals, fedrecon, fedrap, logistic, cnn or cnn-16; all of them when it is left out."""
    growth: bool = False
    """Measure only how a round of FedALS grows from 100,000 interactions to --largest, and its exponent."""
    largest: int = 10_000_000
    """With --growth: the largest world, 1000000, 10000000 or 100000000 interactions (8 GB of memory)."""
    peers: Annotated[tuple[str, ...], Cli(commas=True, alone="all", metavar="NAMES")] = ()
    """Measure other libraries with the same work, on one core: implicit, lenskit, flower, fedjax, pfl, torch; all that
    are installed when no names follow."""
    data: str | None = None
    """With --peers: the data set of the ALS comparison, or its path, in place of generated data of ML-1M's size."""
    out: Annotated[Path | None, Cli(metavar="FILE")] = None
    """With --peers: write a plot, .png or .svg."""
    install: bool = False
    """With --peers: first install libraries whose requirements do not fit ours (lenskit, pfl) into environments of
    their own in the cache."""
    seed: Seed = 0
    """The seed of everything random."""


class ReproduceOptions(JsonOptions):
    """Train the main table of a paper within minutes: our figures beside the published ones.

    PAPER is federated-sgd, fedrecon, fedrap, fedclup or lgmix.
    """

    paper: Annotated[str, Cli(argument=True, metavar="PAPER")]
    out: Path | None = None
    """The folder of the runs, the figures and the plot; a new one under runs/ when it is left out."""
    seed: Seed = 0
    """The seed of everything random."""


class LedgerOptions(ReadSettings, JsonOptions):
    """Show the private runs on the same people and their total epsilon.

    Without --data and --ledger, every ledger is shown.
    """

    data: str | None = None
    """The data set, or its path."""
    ledger: Path | None = None
    """A ledger that a run wrote with --ledger."""
    delta: float | None = None
    """The delta of the total; the smallest one of the runs when it is left out."""
    seed: Seed = 0
    """The seed of data that are generated."""


class SourceListOptions(JsonOptions):
    """List the data sets that have a name."""


class FetchOptions(Options):
    """Fetch a data set into the cache, and check it; or say where to get one that fedtaste may not fetch."""

    name: Annotated[str, Cli(argument=True, metavar="NAME")]


class ImportOptions(FileOptions, ReadSettings):
    """Check a file of your own, and write it in the form that fedtaste reads fastest.

    SOURCE is a CSV, TSV, JSON-lines, Parquet or Feather file with columns user, item and optionally rating, timestamp,
    title, genres. TARGET ends in .parquet, .csv, .csv.gz, or in .world for a folder that is mapped into memory.
    """

    source: Annotated[Path, Cli(argument=True, metavar="SOURCE")]
    target: Annotated[Path, Cli(argument=True, metavar="TARGET")]


class DescribeOptions(ReadSettings, JsonOptions):
    """Count people, items and interactions; of labelled examples: clients, features, classes. NAME may be a path."""

    name: Annotated[str, Cli(argument=True, metavar="NAME")]
    seed: Seed = 0
    """The seed of data that are generated."""


def _all_settings(options: type[Options], *without: str) -> tuple[str, ...]:
    """The names of all settings but those that a command excludes or defines itself."""
    return tuple(name for name in Settings.model_fields if name not in {*without, *options.model_fields})


COMMANDS = {
    "run": Command("run:run", RunOptions, _all_settings(RunOptions)),
    "fit": Command("fit:fit", FitOptions, _all_settings(FitOptions, "protocol", "split", "new_people", "promise")),
    "tune": Command("tune:tune", TuneOptions, _all_settings(TuneOptions)),
    "compare": Command("compare:compare", CompareOptions, _all_settings(CompareOptions, "promise")),
    "resume": Command("resume:resume", ResumeOptions),
    "report": Command("report:report", ReportOptions),
    "federate": Command(
        "federate:federate", FederateOptions,
        _all_settings(FederateOptions, "protocol", "store", "promise", "new_items", "new_item_ridge"),
    ),
    "recommend": Command("recommend:recommend", RecommendOptions),
    "similar": Command("similar:similar", SimilarOptions),
    "export": Command("export:export", ExportOptions),
    "serve": Command("serve:serve", ServeOptions),
    "monitor": Command("monitor:monitor", MonitorOptions),
    "audit": Command(
        "audit:audit", AuditOptions, ("data", "task", "method", "set", "cohort", "dropout", "wire", "epsilon", "delta",
                                      "noise_seed", "seed", "threads", "tuned_on", *ReadSettings.model_fields),
    ),
    "poison": Command("poison:poison", PoisonOptions, ("data", "set", "rounds", "cohort", "seed", "threads",
                                                              *ReadSettings.model_fields)),
    "bench": Command("bench:bench", BenchOptions),
    "reproduce": Command("reproduce:reproduce", ReproduceOptions),
    "data list": Command("data:list_sources", SourceListOptions),
    "data fetch": Command("data:fetch", FetchOptions),
    "data import": Command("data:import_file", ImportOptions),
    "data describe": Command("data:describe", DescribeOptions),
    "privacy ledger": Command("privacy:show_ledger", LedgerOptions),
}  # fmt: skip
