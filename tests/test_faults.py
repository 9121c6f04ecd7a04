"""What a trusted server survives: every row of the fault table, by making the fault.

Kills at random moments of a run are in test_resume.py, damaged bytes in test_decoders.py, and rounds in which all of it
happens in any order in test_rounds_machine.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtaste import __version__
from fedtaste.core import Upload
from fedtaste.data.sources import load
from fedtaste.engine.checkpoint import load_state, same_bytes, save_params, save_state
from fedtaste.engine.run import begin, run
from fedtaste.errors import RunError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Progress
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.files.lock import lock_folder
from fedtaste.wire.messages import Head, decode, encode
from fedtaste.wire.validation import REASONS, UploadValidator
from support.command import fedtaste
from support.killing import marked
from support.worlds import PEOPLE, world

NAME, HOSTILE, ROUNDS, SOME = 77, 3, 2, 8
EVERYBODY = np.arange(SOME)  # few of the world's people: the loop is slow
WORLD = "synthetic:30x24x240"


def trained(network=None, rounds=ROUNDS, method="fedavg", settings=None, members=EVERYBODY, **options):
    """Every round with a copy of all parameters after it (the private parameters are one store that is updated)."""
    made = world(method, settings or {"lr": 0.1}, "ranking", members=members)
    done = run(*made, rounds=rounds, backend="loop", seed=1, run_id=NAME, network=network, **options)
    return [(one, everything(one.state)) for one in done]


def everything(state):
    private = state.private.gather(np.arange(state.private.people))
    return dict(state.shared) | {f"private/{name}": value for name, value in private.items()}


@pytest.fixture(scope="module")
def clean():
    return trained()


@pytest.fixture(scope="module")
def without():
    return trained(members=np.delete(EVERYBODY, HOSTILE))


# Bad updates. (what person 3 sends in place of their upload, the reason for which it is refused)


def scaled(up, factor):
    return Upload({n: (v + 1) * factor for n, v in up.total.items()}, up.weight)


def each(up, change):
    return Upload({n: change(v) for n, v in up.total.items()}, up.weight)


def weighing(weight):
    return lambda up, head: encode(Upload(up.total, weight(up.weight)), head)


BAD = {
    "nan": (lambda up, head: encode(scaled(up, np.nan), head), "non-finite"),
    "one nan": (
        lambda up, head: encode(each(up, lambda v: v.index_fill(0, torch.tensor([1]), np.nan)), head),
        "non-finite",
    ),
    "inf": (lambda up, head: encode(scaled(up, np.inf), head), "non-finite"),
    "-inf": (lambda up, head: encode(scaled(up, -np.inf), head), "non-finite"),
    "1e9": (lambda up, head: encode(each(up, lambda v: v + 1e9), head), "too large"),
    "-1e9": (lambda up, head: encode(each(up, lambda v: v - 1e9), head), "too large"),
    "negative weight": (weighing(lambda w: -w), "weight"),
    "zero weight": (weighing(lambda w: 0 * w), "weight"),
    "huge weight": (weighing(lambda w: w * 1e12), "weight"),
    "nan weight": (weighing(lambda w: w * np.nan), "non-finite"),
    "inf weight": (weighing(lambda w: w * np.inf), "non-finite"),
    "weights": (weighing(lambda w: w.expand(2)), "shape"),
    "double weight": (weighing(lambda w: w.double()), "dtype"),
    "whole weight": (weighing(lambda w: w.long()), "dtype"),
    "yes as a weight": (weighing(lambda w: w > 0), "dtype"),
    "unsigned weight": (weighing(lambda w: w.to(torch.uint32)), "dtype"),
    "tiny type of weight": (weighing(lambda w: w.to(torch.float8_e4m3fn)), "dtype"),
    "complex weight": (weighing(lambda w: w.to(torch.complex64)), "dtype"),
    "longer": (lambda up, head: encode(each(up, lambda v: v[:-1]), head), "shape"),
    "turned": (lambda up, head: encode(each(up, lambda v: v.T), head), "shape"),
    "one number": (lambda up, head: encode(each(up, lambda v: v.sum()), head), "shape"),
    "nothing": (lambda up, head: encode(each(up, lambda v: v[:0]), head), "shape"),
    "other name": (
        lambda up, head: encode(Upload({n + "x": v for n, v in up.total.items()}, up.weight), head),
        "names",
    ),
    "missing name": (lambda up, head: encode(Upload({}, up.weight), head), "names"),
    "further name": (lambda up, head: encode(Upload(up.total | {"x": torch.ones(1)}, up.weight), head), "names"),
    "half": (lambda up, head: encode(each(up, lambda v: v.half()), head), "dtype"),
    "whole": (lambda up, head: encode(each(up, lambda v: v.int()), head), "dtype"),
    "bits": (lambda up, head: encode(each(up, lambda v: v > 0), head), "dtype"),
    "double": (lambda up, head: encode(each(up, lambda v: v[:20].double()), head), "shape"),
    "oversized": (lambda up, head: encode(Upload(up.total | {"x": torch.ones(9999)}, up.weight), head), "oversized"),
    "garbage": (lambda up, head: b"garbage", "not a message"),
    "empty": (lambda up, head: b"", "not a message"),
    "cut": (lambda up, head: encode(up, head)[:-3], "not a message"),
    "no weight": (lambda up, head: encode(up, head).replace(b'"weight"', b'"waight"'), "not a message"),
    "exabytes": (lambda up, head: (2**60).to_bytes(8, "little") + encode(up, head)[8:], "not a message"),
    "other run": (lambda up, head: encode(up, head._replace(run=NAME + 1)), "other run"),
    "late": (lambda up, head: encode(up, head._replace(round=head.round - 1)), "late"),
    "long ago": (lambda up, head: encode(up, head._replace(round=-(2**63))), "late"),
    "early": (lambda up, head: encode(up, head._replace(round=head.round + 1)), "early"),
    "somebody else": (lambda up, head: encode(up, head._replace(person=PEOPLE + 5)), "not asked"),
    "nobody": (lambda up, head: encode(up, head._replace(person=-1)), "not asked"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_upload_is_rejected_counted_and_changes_nothing(kind, without):
    spoil, reason = BAD[kind]

    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield spoil(up, head) if head.person == HOSTILE else blob

    got = trained(network)
    assert reason in REASONS
    for (mine, all_of_it), (other, expected) in zip(got, without):
        assert mine.rejected == {reason: 1} and mine.answered == other.answered == SOME - 1
        assert same_bytes(all_of_it, expected)  # the hostile person's own part included
        assert mine.change == other.change and mine.loss == other.loss


def test_upload_of_doubles_is_rejected_by_its_dtype(without):
    """Where the message is not longer than a sound one may be."""
    up = Upload({"w": torch.ones(3)}, torch.ones(()))
    door = UploadValidator(NAME, 0, [1], up.total)
    assert door.admit(encode(Upload({"w": up.total["w"].double()}, up.weight), Head(NAME, 0, 1))) is None
    assert door.refused == {"dtype": 1}


# Additional messages: whatever they are, the result equals the clean one

COPIES = {
    "duplicate": (lambda blob, up, head, old: blob, "duplicate"),
    "another duplicate": (lambda blob, up, head, old: encode(scaled(up, 2.0), head), "duplicate"),
    "bad duplicate": (lambda blob, up, head, old: encode(scaled(up, np.nan), head), "duplicate"),
    "late": (lambda blob, up, head, old: old.get((head.round - 1, head.person)), "late"),
    "of the first round": (lambda blob, up, head, old: old.get((0, head.person)) if head.round else None, "late"),
    "early": (lambda blob, up, head, old: encode(up, head._replace(round=head.round + 1)), "early"),
    "other run": (lambda blob, up, head, old: encode(up, head._replace(run=0)), "other run"),
    "not asked": (lambda blob, up, head, old: encode(up, head._replace(person=PEOPLE)), "not asked"),
    "garbage": (lambda blob, up, head, old: blob[::-1], "not a message"),
    "oversized": (lambda blob, up, head, old: blob + b"\0" * 2000, "oversized"),
}


@pytest.mark.parametrize("kind", COPIES)
def test_additional_messages_change_nothing(kind, clean):
    make, reason = COPIES[kind]
    old, sent = {}, Counter()

    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            old[head.round, head.person] = blob
            yield blob
            if (extra := make(blob, up, head, old)) is not None:
                sent[head.round] += 1
                yield extra

    for (mine, got), (_, expected) in zip(trained(network), clean):
        assert mine.rejected == ({reason: sent[mine.number - 1]} if sent[mine.number - 1] else {})
        assert mine.answered == SOME and same_bytes(got, expected)
    assert sum(sent.values()) >= SOME


@pytest.mark.parametrize("kind", sorted(k for k, (_, reason) in BAD.items() if reason != "not asked"))
def test_forged_bad_message_does_not_exclude_the_real_client(kind, clean):
    """The forged message comes first; the client's own is still the first valid one."""

    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            if head.person in (HOSTILE, HOSTILE + 1):
                yield BAD[kind][0](up, head)
            yield blob

    for (mine, got), (_, expected) in zip(trained(network, rounds=1), clean):
        assert mine.rejected == {BAD[kind][1]: 2} and mine.answered == SOME and same_bytes(got, expected)


def test_messages_before_the_first_answer_are_rejected(clean):
    """Messages forged in the names of clients not reached yet, late messages and rubbish come before the honest ones."""
    up = Upload({"item": torch.ones(40, 5)}, torch.ones(()))

    def network(blobs):
        yield encode(up, Head(NAME, 0, 6))
        yield b""
        yield encode(up, Head(NAME, -1, 6))
        for blob in blobs:
            if decode(blob)[1].person == 2:
                yield encode(up, Head(NAME, 0, 7))
            yield blob

    done, got = trained(network, rounds=1)[0]
    assert done.rejected == {"not asked": 2, "not a message": 1, "late": 1} and done.answered == SOME
    assert same_bytes(got, clean[0][1])


def test_first_of_two_valid_messages_counts(clean):
    """A faster impostor displaces one client and no more: the validator cannot tell who wrote a message. That is the
    task of the transport (a key for each device, TLS). The duplicate is counted, so the attack is visible."""

    def forged(up):
        return Upload({n: v + 1.0 for n, v in up.total.items()}, up.weight)

    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            if head.person == HOSTILE:
                yield encode(forged(up), head)
            yield blob

    def replaced(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield encode(forged(up), head) if head.person == HOSTILE else blob

    done, got = trained(network, rounds=1)[0]
    assert done.rejected == {"duplicate": 1} and done.answered == SOME
    assert same_bytes(got, trained(replaced, rounds=1)[0][1]) and not same_bytes(got, clean[0][1])
    own = [{n: v for n, v in found.items() if n.startswith("private/")} for found in (got, clean[0][1])]
    assert own[0] and same_bytes(*own)  # what stays on a device is never what somebody else wrote


def test_all_kinds_of_bad_messages_in_one_round(clean):
    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield from (spoil(up, head) for spoil, _ in BAD.values())
            yield blob
            yield from [blob] * 3

    for (mine, got), (_, expected) in zip(trained(network), clean):
        counted = Counter(reason for _, reason in BAD.values()) + Counter(duplicate=3)
        assert mine.rejected == {reason: n * SOME for reason, n in counted.items()}
        assert mine.answered == SOME and same_bytes(got, expected)


@pytest.mark.parametrize("method, settings", [("fedals", {}), ("ditto", {"lr": 0.1, "own_lr": 0.1, "lam": 0.5})])
def test_bad_and_duplicate_messages_with_other_methods(method, settings):
    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield encode(scaled(up, np.inf), head)
            yield blob
            yield blob

    for (mine, got), (_, expected) in zip(trained(network, 2, method, settings), trained(None, 2, method, settings)):
        assert mine.rejected == {"non-finite": SOME, "duplicate": SOME} and same_bytes(got, expected)


# Clients that drop out


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("backend, method", [("loop", "fedavg"), ("vmap", "fedavg"), ("kernel", "fedals")])
def test_clients_drop_out(share, backend, method):
    made = world(method, {"lr": 0.1} if method == "fedavg" else {}, "ranking")
    before = begin(*made, seed=1)
    got = list(run(*made, rounds=4, dropout=share, backend=backend, seed=1))
    for done in got:
        asked, stayed = made[2].cohort(done.number - 1, dropout=share, seed=1)
        assert (done.requested, done.answered, done.rejected) == (len(asked), len(stayed), {})
        assert np.isnan(done.change) == (not len(stayed)) and done.refused is None
    assert [done.number for done in got] == [1, 2, 3, 4]
    if share == 1.0:  # abandoned, every time: nothing is changed, and it is said
        assert same_bytes(everything(got[-1].state), everything(before)) and got[-1].up_bytes == 0
    else:
        assert sum(done.answered for done in got) < 4 * PEOPLE and not same_bytes(got[-1].state.shared, before.shared)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_lost_messages_equal_absent_clients(share):
    """The result equals a run without those clients."""
    lost = set(np.random.default_rng(0).choice(SOME, round(share * SOME), replace=False).tolist())
    network = lambda blobs: (blob for blob in blobs if decode(blob)[1].person not in lost)
    got = trained(network, rounds=4)
    assert [(done.answered, done.rejected) for done, _ in got] == [(SOME - len(lost), {})] * 4
    if len(lost) < SOME:
        there = trained(rounds=4, members=np.array(sorted(set(range(SOME)) - lost)))
        assert same_bytes(got[-1][1], there[-1][1])
    else:
        before = begin(*world("fedavg", {"lr": 0.1}, "ranking"), seed=1)
        assert same_bytes(got[-1][1], everything(before)) and np.isnan(got[-1][0].change)


def test_order_of_messages_does_not_change_the_sum(clean):
    done, got = trained(lambda blobs: iter(list(blobs)[::-1]))[-1]
    assert all(torch.allclose(got[name], value, rtol=0, atol=1e-6) for name, value in clean[-1][1].items())
    assert done.answered == SOME and not done.rejected


def test_run_without_any_answer_has_a_note(tmp_path):
    settings, data = (
        Settings(data=WORLD, method="fedals", set={"k": "3"}, rounds=3, dropout=0.999999, threads=1),
        load(WORLD),
    )
    result = execute(
        prepare(settings, data), RunFolder.create(tmp_path / "run", settings.model_dump(), data, __version__)
    )
    assert "Nobody answered in any round: this is the untrained model." in result.notes


# kill -9 while a checkpoint is written (and 500 times in benchmarks/faults.py)


def test_killed_fifty_times_while_saving(tmp_path):
    killing = Path(__file__).parent / "support" / "killing.py"
    command = [sys.executable, str(killing), "saving", "50", "7", str(tmp_path)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["kills"] == 50 and not found["torn"] and not found["went_back"]
    assert found["checkpoints_written"] > 10 and found["half_files_left_by_the_next_start"] == 0
    assert found["killed_while_a_file_was_half_written"] > 0  # or it shows nothing


def test_only_part_files_of_dead_processes_are_removed(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (tmp_path / "plots").mkdir()
    names = [f".state.safetensors.{gone.pid}.part", f"plots/.loss.png.{gone.pid}.part"]
    others = [f".state.safetensors.{os.getppid()}.part", ".of.somebody.part", "state.part", ".1.part"]
    for name in names + others:
        (tmp_path / name).write_bytes(b"half")
    with lock_folder(tmp_path):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*part")}
    assert left == set(others)


@pytest.fixture
def begun(tmp_path):
    settings, data = Settings(data=WORLD, method="fedals", set={"k": "3"}, rounds=3, threads=1), load(WORLD)
    return RunFolder.create(tmp_path / "run", settings.model_dump(), data, __version__)


def test_resume_of_a_run_killed_before_its_items_were_written(begun):
    (begun.path / "items.json").unlink()
    assert fedtaste("resume", begun.path, "--json").code == 0
    assert len(begun.items(24)["titles"]) == 24


def test_run_in_a_folder_with_a_half_written_settings_file(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (tmp_path / f".settings.json.{gone.pid}.part").write_text("{")
    assert fedtaste("run", "--data", WORLD, "--set", "k=3", "--rounds", "2", "--json", "--out", tmp_path).code == 0


# A disk that is full, or a file that may not grow


@contextlib.contextmanager
def at_most(size: int):
    """Limit the size of files: the system fails a write in the middle of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_checkpoint_too_large_for_the_disk_keeps_the_old_one(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save(*marked(1, 1000))
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for size in (0, 1, 100, 100_000):
        with at_most(size), pytest.raises(RunError, match="state.safetensors cannot be written .*untouched. Free some"):
            folder.save(*marked(2, 1000))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole
    folder.save(*marked(2, 1000))
    assert folder.restore(lambda: marked(0, 1000)[0])[0].round == 2


def test_run_on_a_full_disk_fails_and_can_be_resumed(tmp_path):
    args = ("run", "--data", WORLD, "--set", "k=4", "--rounds", "3", "--threads", "1", "--json", "--out")
    with at_most(3000):  # settings fit, and weights do not
        said = fedtaste(*args, tmp_path / "run")
    assert (said.code, said.out) == (2, "") and "cannot be written" in said.err and "Traceback" not in said.err
    assert fedtaste("resume", tmp_path / "run", "--json").code == 0 and fedtaste(*args, tmp_path / "whole").code == 0
    for name in ("model.safetensors", "final.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# Damaged run folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert (
        fedtaste(
            "run", "--data", WORLD, "--set", "k=4", "--rounds", "3", "--threads", "1", "--json", "--out", path
        ).code
        == 0
    )
    return path


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(*words, has=()):
    said = fedtaste(*words)
    assert said.code == 2 and said.out == "" and "Traceback" not in said.err, (said.code, said.err)
    assert all(part in said.err.replace("\n", "") for part in has), said.err
    return said


ASKED = {
    "settings.json": ("resume", "report", "recommend"),
    "result.json": ("report", "recommend"),
    "items.json": ("recommend",),
    "plan.json": ("recommend",),
    "model.safetensors": ("recommend",),
}


def asked(command, path):
    return (command, path, "--json", *(("--likes", "1") if command == "recommend" else ()))


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("damage", ["folder", "cut", "empty", "other", "deep", "binary", "list"])
def test_damaged_file_of_a_run_is_refused_by_name(copy, name, damage):
    path = copy / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        other = {"cut": whole[: len(whole) // 2], "empty": b"", "other": b"{}", "deep": b"[" * 100_000, "list": b"[]"}
        path.write_bytes(other.get(damage, bytes(range(256))))
    for command in ASKED[name]:
        if not (name == "plan.json" and damage == "other"):
            refused(*asked(command, copy), has=("run" if name == "settings.json" else name,))
    if name == "plan.json" and damage == "other":  # every value of it has changed
        refused(*asked("recommend", copy), has=("other values of",))


@pytest.mark.parametrize("name", ["state.safetensors", "final.safetensors"])
def test_damaged_checkpoint_is_refused_by_name(copy, name):
    (copy / "result.json").unlink()
    whole = (copy / name).read_bytes()
    (copy / name).unlink()
    (copy / name).mkdir()
    refused("resume", copy, "--json", has=(name,))
    (copy / name).rmdir()
    for at in range(8, len(whole), len(whole) // 40):  # a bit that the disk forgot is told, wherever it is
        (copy / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        refused("resume", copy, "--json", has=(name, "cannot be read as weights"))


def test_checkpoint_of_another_version_is_refused(tmp_path):
    made = world("fedavg", {"lr": 0.1}, "ranking")
    state, path = begin(*made), tmp_path / "state.safetensors"
    save_state(path, state, {})
    params = {"shared.item": state.shared["item"], **{f"private.{n}": v for n, v in state.private.pack().items()}}
    for about, word in (
        ({"format": "fedtaste-state-1", "round": 1}, "has format 'fedtaste-state-1'"),
        ({"round": 1}, "has format None"),
        ({"format": "fedtaste-state-2", "round": -1}, "other parameters"),
        ({"format": "fedtaste-state-2", "round": 1.5}, "other parameters"),
        ({"format": "fedtaste-state-2"}, "other parameters"),
        ([], "no description"),
    ):
        save_params(path, params, about)
        before = path.read_bytes()
        with pytest.raises(RunError, match=word):
            load_state(path, begin(*made))
        assert path.read_bytes() == before
    save_params(
        path, params | {"shared.item": params["shared.item"].double()}, {"format": "fedtaste-state-2", "round": 1}
    )
    with pytest.raises(RunError, match="other parameters"):
        load_state(path, begin(*made))


def test_checkpoint_without_valid_progress_is_refused(tmp_path):
    for progress in ({"curve": 3}, {"phase": 1}, {"x": 1}, [], None, {"best_round": "8"}):
        save_params(tmp_path / "state.safetensors", {}, {"progress": progress})
        with pytest.raises(RunError, match="not a checkpoint of this fedtaste"):
            RunFolder(tmp_path).restore(lambda: None)


TAMPERED = {
    "curve": [3, "x", [3], [[]], {"a": 1}], "settings": [3, [], "x"], "notes": [3, [1], {"a": 1}],
    "scale": [[], [1], ["a", "b"]], "rounds": ["x", None, [1], -1, 2.5], "seen": [None, 3, [], {"people": 1, "rmse": "x"}],
    "items": [None, "40"], "leak": [3, {"leaks": True}, {"memoriser_curve": [[1, "x"], 3]}], "traffic": [3, [], None],
    "by_client": [3, [1]], "weights": [[[1], 2], {"a": "x"}], "rejected_updates": [3, [1]], "stopped": [3, None],
    "gradients": ["x"], "data": [3, None], "seconds": [[], "x"], "privacy": [3, {"epsilon": "x"}],
    "intervals": [3, {"seen": 1}], "people": ["x"], "new": [3], "unheard_of": [1],
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_result_is_refused(copy, name):
    result = json.loads((copy / "result.json").read_text())
    for value in TAMPERED[name]:
        (copy / "result.json").write_text(json.dumps(result | {name: value}))
        with pytest.raises(RunError, match=f"result.json has no usable {name}"):
            RunFolder(copy).result()
    refused("report", copy, "--json", has=("result.json has no usable", name))


def test_a_result_that_lacks_something_is_refused(copy):
    result = json.loads((copy / "result.json").read_text())
    assert RunFolder(copy).result().dump() == result
    for name in result:
        (copy / "result.json").write_text(json.dumps({n: v for n, v in result.items() if n != name}))
        with pytest.raises(RunError, match=f"result.json has no usable {name}"):
            RunFolder(copy).result()


def test_facts_that_no_task_has_are_refused(copy):
    facts = json.loads((copy / "facts.json").read_text())
    for name, value in (("kind", "prose"), ("items", -1), ("scale", [5, 1]), ("shape", "x"), ("unheard_of", 1)):
        (copy / "facts.json").write_text(json.dumps(facts | {name: value}))
        with pytest.raises(RunError, match="facts.json has no usable"):
            RunFolder(copy).facts()


def test_a_run_of_a_version_that_was_called_tacit_is_refused(copy):
    header = json.loads((copy / "settings.json").read_text())
    for form, version, writer in (("tacit-run-1", "0.6.0", "tacit 0.6.0"), ("fedtaste-run-9", "2.0", "fedtaste 2.0")):
        (copy / "settings.json").write_text(json.dumps(header | {"format": form, "version": version}))
        for command in ("resume", "report", "recommend"):
            refused(*asked(command, copy), has=(f"was written by {writer}, which", f"Use {writer}, or run again."))


@pytest.mark.parametrize("kept", [{}, {"runs": 3}, {"runs": []}, {"runs": [1]}, {"runs": ["../run"]}, {"runs": ["/"]}])
def test_comparison_file_with_wrong_runs_is_refused(copy, kept):
    (copy / "compare.json").write_text(json.dumps(kept))
    refused("report", copy, "--json", has=("compare.json",))


def test_file_in_place_of_a_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for command in ("resume", "report", "recommend"):
        refused(*asked(command, tmp_path / "file"), has=("is not a run folder",))
    run_there = ("run", "--data", WORLD, "--json", "--out")
    refused(*run_there, tmp_path / "file", has=("cannot be made",))
    refused(*run_there, tmp_path / "file" / "run", has=("cannot be made",))
    with pytest.raises(RunError, match="cannot be written"):
        RunFolder(tmp_path / "file").save(None, Progress())


# Two processes in one run folder

HOLD = """
import sys, time
from pathlib import Path
from fedtaste.files.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("here", flush=True)
    time.sleep(600)
"""


def test_second_process_is_refused_on_the_same_run(begun):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(begun.path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "here\n"
        before = {path.name: path.read_bytes() for path in begun.path.iterdir()}
        said = refused("resume", begun.path, "--json", has=("is being worked on by another process",))
        assert f"({other.pid})" in said.err
        refused("run", "--data", WORLD, "--json", "--out", begun.path, has=("another process",))
        assert {path.name: path.read_bytes() for path in begun.path.iterdir()} == before
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert fedtaste("resume", begun.path, "--json").code == 0  # the lock went with the process


def test_lock_is_released_when_the_work_ends_or_fails(begun, monkeypatch):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_folder(begun.path):
            raise ZeroDivisionError
    with lock_folder(begun.path), pytest.raises(RunError, match="another process"), lock_folder(begun.path):
        raise AssertionError("two at once")
    with pytest.raises(RunError, match="cannot be opened"), lock_folder(begun.path / "none"):
        raise AssertionError("nowhere")
