"""The privacy ledger: composition, integrity, several processes at once, and the commands that write and show it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
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
from support.command import fedtaste

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
    """An empty folder to work in; the ledgers of the default place are in cache/privacy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTASTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDTASTE_LEDGERS")
    return tmp_path


def ledger_file() -> Path:
    (file,) = Path("cache/privacy").glob("*.json")
    return file


def run_private(out: str, *more: object, epsilon: float = 1):
    return fedtaste("run", *WORLD, *PRIVATE, "--epsilon", epsilon, "--out", out, *more)


# Composition


def independent_epsilon(events, delta: float = 1e-6) -> float:
    accountant = pld.PLDAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(delta)


def test_total_is_the_composition_of_all_entries(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
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
    assert total.epsilon < sum(one.epsilon for one in ledger.entries)
    assert ledger.total(1e-9).epsilon > total.epsilon


def test_gaussian_runs_compose_as_one_gaussian(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(*(entry(n, Mechanism(10.0), 1) for n in range(4)))
    assert ledger.total(1e-6).epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(5.0, 1e-6), abs=2e-3)


def test_one_run_costs_what_it_prints(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1, SAMPLED, 20))
    assert ledger.total(1e-6).epsilon == ledger.entries[0].epsilon == epsilons(SAMPLED, 20, 1e-6).epsilon


def test_total_that_means_nothing_comes_from_renyi_divergences(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1, Mechanism(0.1), 10), entry(2, Mechanism(0.2), 10))
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(0.1), 10).compose(dp_accounting.GaussianDpEvent(0.2), 10)
    assert ledger.total(1e-6).epsilon == pytest.approx(accountant.get_epsilon(1e-6))


def test_repeatable_noise_is_listed_and_not_counted(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    assert ledger.total().dump() == {"runs": 0, "epsilon": 0.0, "delta": None, "repeatable_runs": 0}
    ledger.add(entry(1, repeatable=True))
    assert (ledger.total(1e-6).runs, ledger.total(1e-6).epsilon, ledger.total(1e-6).repeatable_runs) == (0, None, 1)
    ledger.add(entry(2))
    total = ledger.total(1e-6)
    assert (total.runs, total.epsilon, total.repeatable_runs) == (1, entry(2).epsilon, 1)


def test_delta_is_the_smallest_of_the_entries_and_must_be_a_probability(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1, delta=1e-5), entry(2, delta=1e-7))
    assert ledger.total().delta == 1e-7
    with pytest.raises(SettingError, match="below 1, got"):
        ledger.total(2.0)


# Entries


def test_same_run_counts_once(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    assert ledger.add(entry(1), entry(1)) == 1
    content = ledger.path.read_bytes()
    assert ledger.add(replace(entry(1), date="2026-01-01")) == 0
    assert ledger.path.read_bytes() == content and len(ledger.entries) == 1


def test_same_noise_at_another_strength_is_refused(tmp_path):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1), entry(2, repeatable=True))
    with pytest.raises(RunError, match="--noise-seed"):
        ledger.add(entry(1, Mechanism(9.0)))
    assert ledger.add(entry(2, Mechanism(9.0), repeatable=True)) == 0


def test_entries_survive_the_file(tmp_path):
    written = [entry(1), entry(2, SAMPLED, 20), entry(3, SHARES), entry(4, LOCAL, repeatable=True)]
    PrivacyLedger.open(tmp_path / "deep" / "people.json", PEOPLE).add(*written)
    found = PrivacyLedger.open(tmp_path / "deep" / "people.json")
    assert found.entries == tuple(written) and found.fingerprint == PEOPLE
    with pytest.raises(RunError, match="no privacy ledger"):
        PrivacyLedger.open(tmp_path / "none.json")


def _add_many(path: Path, worker: int, key: Path) -> None:
    ledger = PrivacyLedger.open(path, PEOPLE, key)
    for number in range(10):
        ledger.add(entry(f"{worker}-{number}"))


def test_processes_side_by_side_lose_no_entry(tmp_path):
    path, key = tmp_path / "people.json", tmp_path / "ledger.key"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_many, args=(path, worker, key)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    runs = {one.run for one in PrivacyLedger.open(path, PEOPLE, key).entries}
    assert runs == {f"{worker}-{number}" for worker in range(8) for number in range(10)}


def test_process_killed_while_writing_leaves_the_old_ledger(tmp_path):
    path = tmp_path / "people.json"
    PrivacyLedger.open(path, PEOPLE).add(entry(1))
    before = path.read_bytes()
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_privacy_ledger import entry, PEOPLE; from fedtaste.experiment.privacy_ledger import PrivacyLedger\n"
        "ledger = PrivacyLedger.open(Path(sys.argv[1]), PEOPLE)\n"
        "os.replace = lambda *paths: os.kill(os.getpid(), 9)\n"
        "ledger.add(entry(2))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path), str(Path(__file__).parent)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before and list(tmp_path.glob(".*.part"))
    ledger = PrivacyLedger.open(path, PEOPLE)
    assert ledger.add(entry(3)) == 1 and [one.run for one in ledger.entries] == ["1", "3"]
    assert not list(tmp_path.glob(".*.part"))


def test_disk_that_is_full_leaves_the_old_ledger(tmp_path, monkeypatch):
    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1))
    before = ledger.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="privacy ledger .* cannot be written .*No space left.* not begun"):
        ledger.add(entry(2))
    assert ledger.path.read_bytes() == before and len(ledger.entries) == 1


# Integrity


def change_digit(path: Path) -> None:
    path.write_text(path.read_text().replace('"rounds": 1', '"rounds": 2', 1))


def delete_entry(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"entries": content["entries"][1:]}))


def reorder(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"entries": content["entries"][::-1]}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_mac(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mac": 7}))


def remove_mac(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["mac"]
    path.write_text(json.dumps(content))


def change_format(path: Path) -> None:
    path.write_text(path.read_text().replace("fedtaste-privacy-ledger-1", "fedtaste-privacy-ledger-2"))


def remove_key(path: Path) -> None:
    path.with_name("ledger.key").unlink()


def replace_key(path: Path) -> None:
    path.with_name("ledger.key").write_bytes(os.urandom(32))


def shorten_key(path: Path) -> None:
    path.with_name("ledger.key").write_bytes(b"short")


def replace_by_list(path: Path) -> None:
    path.write_text("[]")


DAMAGE = {
    change_digit: "edited", delete_entry: "edited", reorder: "edited", truncate: "cut off", empty: "cut off",
    change_mac: "edited", remove_mac: "edited", change_format: "fedtaste-privacy-ledger-2", remove_key: "does not exist",
    replace_key: "not its key", shorten_key: "32 bytes", replace_by_list: "edited",
}  # fmt: skip


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory) -> Path:
    """A folder of ledgers with two private runs; not to be changed by a test."""
    place = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTASTE_LEDGERS", str(place))
        for name in ("one", "two"):
            assert run_private(str(place.parent / f"{place.name}-{name}")).code == 0
    return place


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damaged_ledger_stops_private_runs(damage, two_runs):
    place = Path("cache/privacy")
    place.mkdir(parents=True)
    for file in two_runs.glob("*.*"):
        (place / file.name).write_bytes(file.read_bytes())
    damage(ledger_file())
    before = {file: file.read_bytes() for file in place.iterdir()}
    run_private("mine").refused("privacy ledger", DAMAGE[damage], "restored from a copy")
    fedtaste("privacy", "ledger", "--data", DATA).refused(DAMAGE[damage])
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


def test_entries_of_another_version_are_refused(tmp_path):
    from fedtaste.experiment.privacy_ledger import _mac

    ledger = PrivacyLedger.open(tmp_path / "people.json", PEOPLE)
    ledger.add(entry(1))
    for change in ({"extra": 1}, {"mechanism": {"noise": 1.0, "unknown": True}}):
        content = json.loads(ledger.path.read_text())
        del content["mac"]
        content["entries"][0] |= change
        newer = tmp_path / f"newer-{len(change)}-{next(iter(change))}.json"
        newer.write_text(json.dumps(content | {"mac": _mac(ledger.key.read_bytes(), content)}))
        with pytest.raises(RunError, match="another version of fedtaste .*(extra|unknown)"):
            PrivacyLedger.open(newer, PEOPLE, ledger.key)


# Commands


def test_run_enters_itself_and_says_the_total():
    first = run_private("first")
    assert "No earlier private run on these people: epsilon 0.999 in all (delta 1e-06)." in first.err
    assert first.json["privacy"]["ledger"]["runs"] == 1
    second = run_private("second", epsilon=3)
    assert "With 1 earlier private run on these people: epsilon" in second.err
    total = second.json["privacy"]["ledger"]
    entries = PrivacyLedger.open(ledger_file(), fingerprint(load(DATA)), Path("cache/privacy/ledger.key")).entries
    expected = independent_epsilon(one.mechanism.event(one.rounds) for one in entries)
    assert total == {"runs": 2, "epsilon": pytest.approx(expected, abs=1e-9), "delta": 1e-6, "repeatable_runs": 0}
    assert json.loads(Path("second/result.json").read_text())["privacy"]["ledger"] == total
    assert [(one.folder, one.method, one.data, one.rounds) for one in entries] == [
        ("first", "popularity", DATA, 1),
        ("second", "popularity", DATA, 1),
    ]
    assert str(Path.cwd()) not in ledger_file().read_text(), "no path of this machine"


def test_files_are_their_owners():
    run_private("mine")
    place = Path("cache/privacy")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    assert {"ledger.key", ledger_file().name} <= modes.keys() and set(modes.values()) == {0o600}
    assert stat.S_IMODE(Path("mine/ledger.json").stat().st_mode) == 0o600


def test_run_without_noise_leaves_no_ledger():
    assert fedtaste("run", *WORLD, "--method", "popularity", "--out", "mine").json["privacy"] is None
    assert not Path("cache/privacy").exists() and not Path("mine/ledger.json").exists()
    refused = fedtaste("run", *WORLD, "--method", "popularity", "--ledger", "people.json", "--out", "other")
    refused.refused("--ledger would change nothing")


def test_repeatable_run_is_entered_and_not_counted():
    said = fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "mine")
    assert "This run is not counted: repeatable noise" in said.err
    assert said.json["privacy"]["ledger"] == {"runs": 0, "epsilon": None, "delta": 1e-6, "repeatable_runs": 1}
    again = fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "again")
    assert "had this run already" in again.err and again.json["privacy"]["ledger"]["repeatable_runs"] == 1


def test_resume_adds_nothing_and_keeps_its_total():
    before = run_private("mine").json
    assert run_private("later").code == 0
    content = ledger_file().read_bytes()
    for name in ("result.json", "report.html", "state.safetensors"):
        Path("mine", name).unlink()
    after = fedtaste("resume", "mine", "--json").json
    assert ledger_file().read_bytes() == content
    assert after["privacy"] == before["privacy"]


def test_damaged_ledger_stops_resume():
    run_private("mine")
    for name in ("result.json", "report.html", "state.safetensors"):
        Path("mine", name).unlink()
    truncate(ledger_file())
    fedtaste("resume", "mine", "--json").refused("cut off")
    assert not Path("mine/state.safetensors").exists()


def test_ledger_of_a_deployment_is_refused():
    fedtaste("federate", "--write-app", "app", "--ledger", "people.json").refused("--ledger would change nothing")


def test_run_that_died_before_it_was_entered_is_entered_by_resume():
    run_private("mine", "--ledger", "people.json")
    for name in ("result.json", "report.html", "state.safetensors"):
        Path("mine", name).unlink()
    for name in ("people.json", "people.json.key"):
        Path(name).unlink()
    assert fedtaste("resume", "mine", "--json").json["privacy"]["ledger"]["runs"] == 1
    assert len(PrivacyLedger.open(Path("people.json")).entries) == 1
    assert not Path("cache/privacy").exists(), "the file that was named is remembered"


@pytest.mark.parametrize("jobs", [1, 2])
def test_comparison_counts_every_private_run(jobs):
    run_private("earlier")
    options = ("--methods", "popularity", "--wire", "clip=1", "--epsilon", "1,3,none")
    said = fedtaste("compare", *WORLD, *options, "--jobs", jobs, "--out", "both")
    results = said.json["results"]
    assert "2 private runs, with 1 earlier private run on these people: epsilon" in said.err
    totals = [result["privacy"] and result["privacy"]["ledger"] for result in results]
    assert totals[0] == totals[1] and totals[0]["runs"] == 3 and totals[2] is None
    found = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert [one["folder"] for one in found["runs"]] == ["earlier", "popularity-epsilon=1", "popularity-epsilon=3"]
    assert found["epsilon"] == totals[0]["epsilon"]


def test_privacy_ledger_shows_a_table_and_json():
    run_private("first")
    fedtaste("run", *WORLD, *PRIVATE, "--noise-seed", 3, "--epsilon", 1, "--out", "study")
    found = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert found.keys() == {"fingerprint", "runs", "epsilon", "delta", "repeatable_runs"}
    assert found["fingerprint"] == fingerprint(load(DATA)) and found["repeatable_runs"] == 1
    assert [one["repeatable"] for one in found["runs"]] == [False, True]
    assert found["epsilon"] == found["runs"][0]["epsilon"] and found["delta"] == 1e-6
    assert fedtaste("privacy", "ledger", "--data", DATA, "--delta", "1e-3", "--json").json["epsilon"] < found["epsilon"]
    shown = fedtaste("privacy", "ledger", "--data", DATA).out
    for part in ("first", "study", "popularity", "0.999", "secret", "repeatable", "1 run in all: epsilon 0.999"):
        assert part in shown, shown
    assert "Runs without noise" in shown and "not counted" in shown
    every = fedtaste("privacy", "ledger")
    assert f"{DATA}: 1 run in all: epsilon 0.999 (delta 1e-06). Not counted, as repeatable: 1." in every.out
    assert fedtaste("privacy", "ledger", "--json").json == {"ledgers": [found]}
    assert fedtaste("privacy", "ledger", "--ledger", ledger_file(), "--json").json == found


def test_privacy_ledger_of_data_without_private_runs_and_of_no_data():
    assert "There is no privacy ledger" in fedtaste("privacy", "ledger").out
    assert "No private run on these people" in fedtaste("privacy", "ledger", "--data", DATA).out
    found = fedtaste("privacy", "ledger", "--data", DATA, "--json").json
    assert (found["runs"], found["epsilon"], found["delta"]) == ([], 0.0, None)
    fedtaste("privacy", "ledger", "--ledger", "none.json").refused("no privacy ledger")
    fedtaste("privacy", "ledger", "--delta", "2").refused("--delta")
    assert not Path("cache/privacy").exists()


def test_damaged_ledger_does_not_hide_the_others():
    run_private("first")
    damaged = Path("cache/privacy/0000000000000000.json")
    damaged.write_text("{")
    said = fedtaste("privacy", "ledger")
    assert said.code == 2 and f"{DATA}: 1 run in all" in said.out and damaged.name in said.err
