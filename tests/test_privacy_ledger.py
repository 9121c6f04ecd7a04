"""The privacy ledger: composition, integrity, several processes at once, and the commands that write and show it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import pld, rdp

from fedtaste.data.sources import load
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.folder import fingerprint
from fedtaste.experiment.privacy_ledger import Entry, PrivacyLedger
from fedtaste.wire.accounting import Mechanism, epsilons
from support.command import WorkerHere, fedtaste

DATA = "synthetic:40x40x400"
WORLD = ("--data", DATA, "--threads", "1", "--json")
PRIVATE = ("--method", "popularity", "--wire", "clip=1")
PEOPLE = "5" * 64
CENTRAL, SAMPLED = Mechanism(8.0), Mechanism(2.0, rate=0.1)
SHARES, LOCAL = Mechanism(4.0, shares=(0.2, 0.3, 0.5)), Mechanism(30.0, local=True)


def entry(run: object, mechanism: Mechanism = CENTRAL, rounds: int = 3, **other) -> Entry:
    values = {"delta": 1e-6, "against": "whoever sees the model", "repeatable": False} | other
    return Entry(str(run), f"run-{run}", "2025-01-31", "fedals", "people", rounds, mechanism=mechanism, **values)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """An empty working folder. Ledgers at the default place are in cache/privacy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTASTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDTASTE_LEDGERS")
    return tmp_path


@pytest.fixture
def ledger(tmp_path) -> PrivacyLedger:
    """An empty ledger in people.json."""
    return PrivacyLedger.open(tmp_path / "people.json", PEOPLE)


def ledger_file() -> Path:
    (file,) = Path("cache/privacy").glob("*.json")
    return file


def forget_result(folder: str) -> None:
    """Make a finished run one that was killed before its first checkpoint."""
    for name in ("result.json", "report.html", "state.safetensors"):
        Path(folder, name).unlink()


def run_private(out: str, *more: object, epsilon: float = 1):
    return fedtaste("run", *WORLD, *PRIVATE, "--epsilon", epsilon, "--out", out, *more)


# Composition


def independent_epsilon(events, delta: float = 1e-6) -> float:
    """Epsilon of these events by the PLD accountant of dp_accounting."""
    accountant = pld.PLDAccountant()
    for event, count in Counter(events).items():
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def test_total_is_the_composition_of_all_entries(ledger):
    ledger.add(entry(1), entry(2, SAMPLED, 20), entry(3, SHARES), entry(4, LOCAL, 2, against="whoever sees an upload"))
    gaussian, sampled = dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent
    events = [
        *[gaussian(8.0)] * 3,
        *[sampled(0.1, gaussian(2.0))] * 20,
        *[gaussian(4.0 / share**0.5) for share in (0.2, 0.3, 0.5)],
        *[gaussian(15.0)] * 2,
    ]
    total = ledger.total(1e-6)
    assert (total.runs, total.delta, total.repeatable_runs) == (4, 1e-6, 0)
    assert total.epsilon == pytest.approx(independent_epsilon(events), abs=5e-3)
    assert total.epsilon < sum(item.epsilon for item in ledger.entries)
    assert ledger.total(1e-9).epsilon > total.epsilon


def test_gaussian_runs_compose_as_one_gaussian(ledger):
    ledger.add(*(entry(n, Mechanism(10.0), 1) for n in range(4)))
    assert ledger.total(1e-6).epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(5.0, 1e-6), abs=2e-3)


def test_total_of_one_run_equals_the_epsilon_of_that_run(ledger):
    ledger.add(entry(1, SAMPLED, 20))
    assert ledger.total(1e-6).epsilon == ledger.entries[0].epsilon == epsilons(SAMPLED, 20, 1e-6).epsilon


def test_a_huge_total_equals_that_of_the_renyi_accountant(ledger):
    ledger.add(entry(1, Mechanism(0.1), 10), entry(2, Mechanism(0.2), 10))
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(0.1), 10).compose(dp_accounting.GaussianDpEvent(0.2), 10)
    assert ledger.total(1e-6).epsilon == pytest.approx(accountant.get_epsilon(1e-6))


def test_repeatable_noise_is_listed_and_not_counted(ledger):
    assert ledger.total().dump() == {"runs": 0, "epsilon": 0.0, "delta": None, "repeatable_runs": 0}
    ledger.add(entry(1, repeatable=True))
    assert (ledger.total(1e-6).runs, ledger.total(1e-6).epsilon, ledger.total(1e-6).repeatable_runs) == (0, None, 1)
    ledger.add(entry(2))
    total = ledger.total(1e-6)
    assert (total.runs, total.epsilon, total.repeatable_runs) == (1, entry(2).epsilon, 1)


def test_delta_is_the_smallest_of_the_entries_and_must_be_a_probability(ledger):
    ledger.add(entry(1, delta=1e-5), entry(2, delta=1e-7))
    assert ledger.total().delta == 1e-7
    with pytest.raises(SettingError, match="below 1, got"):
        ledger.total(2.0)


# Entries


def test_same_run_counts_once(ledger):
    assert ledger.add(entry(1), entry(1)) == 1
    content = ledger.path.read_bytes()
    assert ledger.add(replace(entry(1), date="2026-01-01")) == 0
    assert ledger.path.read_bytes() == content and len(ledger.entries) == 1


def test_same_noise_at_another_strength_is_refused(ledger):
    ledger.add(entry(1), entry(2, repeatable=True))
    with pytest.raises(RunError, match="--noise-seed"):
        ledger.add(entry(1, Mechanism(9.0)))
    assert ledger.add(entry(2, Mechanism(9.0), repeatable=True)) == 0


def test_entries_are_read_back_from_the_file(tmp_path):
    entries = [entry(1), entry(2, SAMPLED, 20), entry(3, SHARES), entry(4, LOCAL, repeatable=True)]
    PrivacyLedger.open(tmp_path / "deep" / "people.json", PEOPLE).add(*entries)
    ledger = PrivacyLedger.open(tmp_path / "deep" / "people.json")
    assert ledger.entries == tuple(entries) and ledger.fingerprint == PEOPLE
    with pytest.raises(RunError, match="no privacy ledger"):
        PrivacyLedger.open(tmp_path / "none.json")


def _add_many(path: Path, worker: int, key: Path) -> None:
    ledger = PrivacyLedger.open(path, PEOPLE, key)
    for number in range(10):
        ledger.add(entry(f"{worker}-{number}"))


def test_parallel_processes_lose_no_entry(tmp_path):
    path, key = tmp_path / "people.json", tmp_path / "ledger.key"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_many, args=(path, worker, key)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    runs = {item.run for item in PrivacyLedger.open(path, PEOPLE, key).entries}
    assert runs == {f"{worker}-{number}" for worker in range(8) for number in range(10)}


def test_process_killed_while_writing_leaves_the_old_ledger(tmp_path):
    path = tmp_path / "people.json"
    PrivacyLedger.open(path, PEOPLE).add(entry(1))
    before = path.read_bytes()
    if not (child := os.fork()):  # a new process would import torch for seconds
        try:
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            PrivacyLedger.open(path, PEOPLE).add(entry(2))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.read_bytes() == before and list(tmp_path.glob(".*.part"))
    ledger = PrivacyLedger.open(path, PEOPLE)
    assert ledger.add(entry(3)) == 1 and [item.run for item in ledger.entries] == ["1", "3"]
    assert not list(tmp_path.glob(".*.part"))


def test_a_full_disk_leaves_the_old_ledger(ledger, monkeypatch):
    ledger.add(entry(1))
    before = ledger.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="cannot be written .*No space left"):
        ledger.add(entry(2))
    assert ledger.path.read_bytes() == before and len(ledger.entries) == 1


# Integrity


def edit_text(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new, 1))


def edit_json(change: Callable[[dict], dict]) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(change(json.loads(path.read_text()))))


def write_key(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.with_name("ledger.key").write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {  # name -> (damage of the file, part of the error)
    "changed digit": (edit_text('"rounds": 1', '"rounds": 2'), "edited"),
    "deleted entry": (edit_json(lambda content: content | {"entries": content["entries"][1:]}), "edited"),
    "other order": (edit_json(lambda content: content | {"entries": content["entries"][::-1]}), "edited"),
    "truncated": (truncate, "cut off"),
    "empty": (lambda path: path.write_bytes(b""), "cut off"),
    "changed MAC": (edit_json(lambda content: content | {"mac": 7}), "edited"),
    "no MAC": (edit_json(lambda content: {n: v for n, v in content.items() if n != "mac"}), "edited"),
    "other format": (edit_text("fedtaste-privacy-ledger-1", "fedtaste-privacy-ledger-2"), "fedtaste-privacy-ledger-2"),
    "no key": (lambda path: path.with_name("ledger.key").unlink(), "does not exist"),
    "other key": (write_key(os.urandom(32)), "not its key"),
    "short key": (write_key(b"short"), "32 bytes"),
    "a list": (lambda path: path.write_text("[]"), "edited"),
}


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory) -> Path:
    """A folder of ledgers with two private runs. Tests only read it."""
    place = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTASTE_LEDGERS", str(place))
        for name in ("one", "two"):
            assert run_private(str(place.parent / f"{place.name}-{name}")).code == 0
    return place


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_ledger_stops_private_runs(name, two_runs):
    damage, error_text = DAMAGE[name]
    place = Path("cache/privacy")
    place.mkdir(parents=True)
    for file in two_runs.glob("*.*"):
        (place / file.name).write_bytes(file.read_bytes())
    damage(ledger_file())
    before = {file: file.read_bytes() for file in place.iterdir()}
    run_private("mine").refused("privacy ledger", error_text, "restored from a copy")
    fedtaste("privacy", "ledger", "--data", DATA).refused(error_text)
    assert not Path("mine").exists()
    assert {file: file.read_bytes() for file in place.iterdir()} == before
    assert fedtaste("run", *WORLD, "--method", "popularity", "--out", "plain").code == 0, "no noise, no ledger"


def test_ledger_of_other_data_is_refused():
    PrivacyLedger.open(Path("people.json"), PEOPLE).add(entry(1))
    before = Path("people.json").read_bytes()
    run_private("mine", "--ledger", "people.json").refused("other data", PEOPLE[:16])
    assert not Path("mine").exists() and Path("people.json").read_bytes() == before
    assert not Path("cache/privacy").exists()


def test_ledger_that_lost_the_key_of_its_folder_is_not_given_a_new_one(tmp_path):
    key = tmp_path / "ledger.key"
    PrivacyLedger.open(tmp_path / "first.json", PEOPLE, key).add(entry(1))
    key.unlink()
    with pytest.raises(RunError, match="does not exist"):
        PrivacyLedger.open(tmp_path / "second.json", "6" * 64, key)
    assert not key.exists()


def test_entries_of_another_version_are_refused(ledger, tmp_path):
    from fedtaste.experiment.privacy_ledger import _mac

    ledger.add(entry(1))
    for change in ({"extra": 1}, {"mechanism": {"noise": 1.0, "unknown": True}}):
        content = json.loads(ledger.path.read_text())
        del content["mac"]
        content["entries"][0] |= change
        newer = tmp_path / f"newer-{len(change)}-{next(iter(change))}.json"
        newer.write_text(json.dumps(content | {"mac": _mac(ledger.key.read_bytes(), content)}))
        with pytest.raises(RunError, match="another version .*(extra|unknown)"):
            PrivacyLedger.open(newer, PEOPLE, ledger.key)


# Commands


def test_a_run_adds_itself_to_the_ledger_and_prints_the_total():
    first = run_private("first")
    assert "No earlier private run" in first.err and "epsilon 0.999 in all (delta 1e-06)" in first.err
    assert first.json["privacy"]["ledger"]["runs"] == 1
    second = run_private("second", epsilon=3)
    assert "With 1 earlier private run" in second.err
    total = second.json["privacy"]["ledger"]
    entries = PrivacyLedger.open(ledger_file(), fingerprint(load(DATA)), Path("cache/privacy/ledger.key")).entries
    expected = independent_epsilon(item.mechanism.event(item.rounds) for item in entries)
    assert total == {"runs": 2, "epsilon": pytest.approx(expected, abs=1e-9), "delta": 1e-6, "repeatable_runs": 0}
    assert json.loads(Path("second/result.json").read_text())["privacy"]["ledger"] == total
    assert [(item.folder, item.method, item.data, item.rounds) for item in entries] == [
        ("first", "popularity", DATA, 1),
        ("second", "popularity", DATA, 1),
    ]
    assert str(Path.cwd()) not in ledger_file().read_text(), "no path of this machine"


def test_only_the_owner_can_read_ledger_files():
    run_private("mine")
    place = Path("cache/privacy")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    assert {"ledger.key", ledger_file().name} <= modes.keys() and set(modes.values()) == {0o600}
    assert stat.S_IMODE(Path("mine/ledger.json").stat().st_mode) == 0o600


def test_a_run_without_noise_writes_no_ledger():
    assert fedtaste("run", *WORLD, "--method", "popularity", "--out", "mine").json["privacy"] is None
    assert not Path("cache/privacy").exists() and not Path("mine/ledger.json").exists()
    args = (*WORLD, "--method", "popularity", "--ledger", "people.json", "--out", "other")
    fedtaste("run", *args).refused("--ledger would change nothing")


def test_a_repeatable_run_is_listed_and_not_counted():
    output = fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "mine")
    assert "This run is not counted: repeatable noise" in output.err
    assert output.json["privacy"]["ledger"] == {"runs": 0, "epsilon": None, "delta": 1e-6, "repeatable_runs": 1}
    second = fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "again")
    assert "had this run already" in second.err and second.json["privacy"]["ledger"]["repeatable_runs"] == 1


def test_resume_adds_nothing_and_keeps_its_total():
    before = run_private("mine").json
    assert run_private("later").code == 0
    content = ledger_file().read_bytes()
    forget_result("mine")
    after = fedtaste("resume", "mine", "--json").json
    assert ledger_file().read_bytes() == content
    assert after["privacy"] == before["privacy"]


def test_damaged_ledger_stops_resume():
    run_private("mine")
    forget_result("mine")
    truncate(ledger_file())
    fedtaste("resume", "mine", "--json").refused("cut off")
    assert not Path("mine/state.safetensors").exists()


def test_ledger_of_a_deployment_is_refused():
    fedtaste("federate", "--write-app", "app", "--ledger", "people.json").refused("--ledger would change nothing")


def test_resume_adds_a_run_that_died_before_it_was_in_the_ledger():
    run_private("mine", "--ledger", "people.json")
    forget_result("mine")
    for name in ("people.json", "people.json.key"):
        Path(name).unlink()
    assert fedtaste("resume", "mine", "--json").json["privacy"]["ledger"]["runs"] == 1
    assert len(PrivacyLedger.open(Path("people.json")).entries) == 1
    assert not Path("cache/privacy").exists(), "the file that was named is remembered"


@pytest.mark.parametrize("jobs, epsilons", [(1, "1,3,none"), (2, "1,3")])  # with two jobs workers train the runs
def test_comparison_counts_every_private_run(jobs, epsilons, monkeypatch):
    monkeypatch.setattr("fedtaste.experiment.compare.subprocess.Popen", WorkerHere)
    run_private("earlier")
    options = ("--methods", "popularity", "--wire", "clip=1", "--epsilon", epsilons)
    output = fedtaste("compare", *WORLD, *options, "--jobs", jobs, "--out", "both")
    results = output.json["results"]
    assert "2 private runs, with 1 earlier private run" in output.err
    totals = [result["privacy"] and result["privacy"]["ledger"] for result in results]
    assert totals[0] == totals[1] and totals[0]["runs"] == 3 and totals[2:] == [None] * (epsilons.count(",") - 1)
    ledger = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert [item["folder"] for item in ledger["runs"]] == ["earlier", "popularity-epsilon=1", "popularity-epsilon=3"]
    assert ledger["epsilon"] == totals[0]["epsilon"]


def test_privacy_ledger_shows_a_table_and_json():
    run_private("first")
    fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "study")
    ledger = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert ledger.keys() == {"fingerprint", "runs", "epsilon", "delta", "repeatable_runs"}
    assert ledger["fingerprint"] == fingerprint(load(DATA)) and ledger["repeatable_runs"] == 1
    assert [item["repeatable"] for item in ledger["runs"]] == [False, True]
    assert ledger["epsilon"] == ledger["runs"][0]["epsilon"] and ledger["delta"] == 1e-6
    weaker = fedtaste("privacy", "ledger", "--data", DATA, "--delta", "1e-3", "--json").json
    assert weaker["epsilon"] < ledger["epsilon"]
    table = fedtaste("privacy", "ledger", "--data", DATA).out
    for part in ("first", "study", "popularity", "0.999", "secret", "repeatable", "1 run in all: epsilon 0.999"):
        assert part in table, table
    assert "Runs without noise" in table and "not counted" in table
    all_ledgers = fedtaste("privacy", "ledger")
    assert f"{DATA}: 1 run in all: epsilon 0.999 (delta 1e-06). Not counted, as repeatable: 1." in all_ledgers.out
    assert fedtaste("privacy", "ledger", "--json").json == {"ledgers": [ledger]}
    assert fedtaste("privacy", "ledger", "--ledger", ledger_file(), "--json").json == ledger


def test_privacy_ledger_command_without_private_runs_says_so_and_creates_nothing():
    assert "There is no privacy ledger" in fedtaste("privacy", "ledger").out
    assert "No private run on these people" in fedtaste("privacy", "ledger", "--data", DATA).out
    ledger = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert (ledger["runs"], ledger["epsilon"], ledger["delta"]) == ([], 0.0, None)
    fedtaste("privacy", "ledger", "--ledger", "none.json").refused("no privacy ledger")
    fedtaste("privacy", "ledger", "--delta", "2").refused("--delta")
    assert not Path("cache/privacy").exists()


def test_damaged_ledger_does_not_hide_the_others():
    run_private("first")
    damaged = Path("cache/privacy/0000000000000000.json")
    damaged.write_text("{")
    output = fedtaste("privacy", "ledger")
    assert output.code == 2 and f"{DATA}: 1 run in all" in output.out and damaged.name in output.err


@pytest.mark.parametrize(("method", "said"), [("fedals", True), ("popularity", False), ("fedveil", False)])
def test_a_private_run_names_the_methods_that_noise_suits(method, said):
    options = ("--method", method, "--rounds", 1) if method == "fedals" else ("--method", method)
    clip = () if method == "fedveil" else ("--wire", "clip=1")
    output = fedtaste("run", *WORLD, *options, *clip, "--epsilon", 1, "--out", "run")
    assert ("Noise suits few methods" in output.err) == said and output.code == 0
