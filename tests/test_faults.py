"""A trusted server survives every fault of the fault table: each test causes one of them.

Kills at random moments of a run are in test_resume.py, damaged bytes in test_decoders.py, and random sequences of
faults in test_rounds_machine.py.
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
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.files.lock import lock_folder
from fedtaste.wire.messages import Head, decode, encode
from fedtaste.wire.validation import REASONS, UploadValidator
from support.command import fedtaste
from support.killing import state_of_number
from support.states import everything
from support.worlds import PEOPLE, world

NAME, HOSTILE, ROUNDS, CLIENTS = 77, 3, 2, 8
EVERYBODY = np.arange(CLIENTS)  # a few of the world's people, because the loop backend is slow
WORLD = "synthetic:30x24x240"
RUN = ("run", "--data", WORLD, "--set", "k=4", "--rounds", "3", "--threads", "1", "--json", "--out")


def train(network=None, rounds=ROUNDS, method="fedavg", settings=None, members=EVERYBODY, **options):
    """Every round, with a copy of all parameters after it (private parameters are in one store that is updated)."""
    setup = world(method, settings or {"lr": 0.1}, "ranking", members=members)
    rounds_of_run = run(*setup, rounds=rounds, backend="loop", seed=1, run_id=NAME, network=network, **options)
    return [(item, everything(item.state)) for item in rounds_of_run]


def network_of(messages):
    """A network that delivers `messages(blob, upload, head)` in place of every message of a client."""
    return lambda blobs: (message for blob in blobs for message in messages(blob, *decode(blob)))


@pytest.fixture(scope="module")
def clean():
    return train()


@pytest.fixture(scope="module")
def without_hostile():
    return train(members=np.delete(EVERYBODY, HOSTILE))


# Bad updates: (the message that person 3 sends in place of their upload, the reason for which it is refused)


def scale(up, factor):
    return Upload({n: (v + 1) * factor for n, v in up.total.items()}, up.weight)


def change_each(up, change):
    return Upload({n: change(v) for n, v in up.total.items()}, up.weight)


def with_weight(weight):
    return lambda up, head: encode(Upload(up.total, weight(up.weight)), head)


BAD = {
    "nan": (lambda up, head: encode(scale(up, np.nan), head), "non-finite"),
    "one nan": (
        lambda up, head: encode(change_each(up, lambda v: v.index_fill(0, torch.tensor([1]), np.nan)), head),
        "non-finite",
    ),
    "inf": (lambda up, head: encode(scale(up, np.inf), head), "non-finite"),
    "-inf": (lambda up, head: encode(scale(up, -np.inf), head), "non-finite"),
    "1e9": (lambda up, head: encode(change_each(up, lambda v: v + 1e9), head), "too large"),
    "-1e9": (lambda up, head: encode(change_each(up, lambda v: v - 1e9), head), "too large"),
    "negative weight": (with_weight(lambda w: -w), "weight"),
    "zero weight": (with_weight(lambda w: 0 * w), "weight"),
    "huge weight": (with_weight(lambda w: w * 1e12), "weight"),
    "nan weight": (with_weight(lambda w: w * np.nan), "non-finite"),
    "inf weight": (with_weight(lambda w: w * np.inf), "non-finite"),
    "weights": (with_weight(lambda w: w.expand(2)), "shape"),
    "double weight": (with_weight(lambda w: w.double()), "dtype"),
    "whole weight": (with_weight(lambda w: w.long()), "dtype"),
    "yes as a weight": (with_weight(lambda w: w > 0), "dtype"),
    "unsigned weight": (with_weight(lambda w: w.to(torch.uint32)), "dtype"),
    "tiny type of weight": (with_weight(lambda w: w.to(torch.float8_e4m3fn)), "dtype"),
    "complex weight": (with_weight(lambda w: w.to(torch.complex64)), "dtype"),
    "longer": (lambda up, head: encode(change_each(up, lambda v: v[:-1]), head), "shape"),
    "turned": (lambda up, head: encode(change_each(up, lambda v: v.T), head), "shape"),
    "one number": (lambda up, head: encode(change_each(up, lambda v: v.sum()), head), "shape"),
    "nothing": (lambda up, head: encode(change_each(up, lambda v: v[:0]), head), "shape"),
    "other name": (
        lambda up, head: encode(Upload({n + "x": v for n, v in up.total.items()}, up.weight), head),
        "names",
    ),
    "missing name": (lambda up, head: encode(Upload({}, up.weight), head), "names"),
    "further name": (lambda up, head: encode(Upload(up.total | {"x": torch.ones(1)}, up.weight), head), "names"),
    "half": (lambda up, head: encode(change_each(up, lambda v: v.half()), head), "dtype"),
    "whole": (lambda up, head: encode(change_each(up, lambda v: v.int()), head), "dtype"),
    "bits": (lambda up, head: encode(change_each(up, lambda v: v > 0), head), "dtype"),
    "double": (lambda up, head: encode(change_each(up, lambda v: v[:20].double()), head), "shape"),
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
def test_bad_upload_is_rejected_counted_and_changes_nothing(kind, without_hostile):
    spoil, reason = BAD[kind]
    network = network_of(lambda blob, up, head: [spoil(up, head) if head.person == HOSTILE else blob])
    assert reason in REASONS
    for (result, params), (other, expected) in zip(train(network), without_hostile):
        assert result.rejected == {reason: 1} and result.answered == other.answered == CLIENTS - 1
        assert same_bytes(params, expected)  # including the private parameters of the hostile person
        assert result.change == other.change and result.loss == other.loss


def test_upload_of_doubles_is_rejected_by_its_dtype(without_hostile):
    """The message is not longer than a valid one may be."""
    upload = Upload({"w": torch.ones(3)}, torch.ones(()))
    validator = UploadValidator(NAME, 0, [1], upload.total)
    assert validator.admit(encode(Upload({"w": upload.total["w"].double()}, upload.weight), Head(NAME, 0, 1))) is None
    assert validator.refused == {"dtype": 1}


# Additional messages do not change the result

COPIES = {
    "duplicate": (lambda blob, up, head, old: blob, "duplicate"),
    "another duplicate": (lambda blob, up, head, old: encode(scale(up, 2.0), head), "duplicate"),
    "bad duplicate": (lambda blob, up, head, old: encode(scale(up, np.nan), head), "duplicate"),
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
    earlier, extras = {}, Counter()

    def with_extra(blob, up, head):
        earlier[head.round, head.person] = blob
        extra = make(blob, up, head, earlier)
        extras[head.round] += extra is not None
        return [blob] if extra is None else [blob, extra]

    for (result, params), (_, expected) in zip(train(network_of(with_extra)), clean):
        assert result.rejected == ({reason: extras[result.number - 1]} if extras[result.number - 1] else {})
        assert result.answered == CLIENTS and same_bytes(params, expected)
    assert sum(extras.values()) >= CLIENTS


@pytest.mark.parametrize("kind", sorted(k for k, (_, reason) in BAD.items() if reason != "not asked"))
def test_forged_bad_message_does_not_exclude_the_real_client(kind, clean):
    """The forged message arrives first, but the client's own is the first valid one."""
    spoil, reason = BAD[kind]
    victims = (HOSTILE, HOSTILE + 1)
    network = network_of(lambda blob, up, head: [spoil(up, head), blob] if head.person in victims else [blob])
    for (result, params), (_, expected) in zip(train(network, rounds=1), clean):
        assert result.rejected == {reason: 2} and result.answered == CLIENTS and same_bytes(params, expected)


def test_messages_before_the_first_answer_are_rejected(clean):
    """Messages forged in the names of clients not reached yet, late messages and rubbish precede the honest ones."""
    up = Upload({"item": torch.ones(40, 5)}, torch.ones(()))

    def network(blobs):
        yield encode(up, Head(NAME, 0, 6))
        yield b""
        yield encode(up, Head(NAME, -1, 6))
        for blob in blobs:
            if decode(blob)[1].person == 2:
                yield encode(up, Head(NAME, 0, 7))
            yield blob

    result, params = train(network, rounds=1)[0]
    assert result.rejected == {"not asked": 2, "not a message": 1, "late": 1} and result.answered == CLIENTS
    assert same_bytes(params, clean[0][1])


def test_first_of_two_valid_messages_counts(clean):
    """A faster impostor displaces one client and no more, because the validator cannot know who wrote a message. That
    is the task of the transport (a key for each device, TLS). The duplicate is counted, so the attack is visible."""

    forged = lambda up, head: encode(change_each(up, lambda v: v + 1.0), head)
    before = network_of(lambda blob, up, head: [forged(up, head), blob] if head.person == HOSTILE else [blob])
    instead = network_of(lambda blob, up, head: [forged(up, head) if head.person == HOSTILE else blob])
    result, params = train(before, rounds=1)[0]
    assert result.rejected == {"duplicate": 1} and result.answered == CLIENTS
    assert same_bytes(params, train(instead, rounds=1)[0][1]) and not same_bytes(params, clean[0][1])
    private = [{n: v for n, v in both.items() if n.startswith("private/")} for both in (params, clean[0][1])]
    assert private[0] and same_bytes(*private)  # nobody else can write the private parameters of a device


def test_all_kinds_of_bad_messages_in_one_round_change_nothing(clean):
    network = network_of(lambda blob, up, head: [*(spoil(up, head) for spoil, _ in BAD.values()), *[blob] * 4])
    expected_counts = Counter(reason for _, reason in BAD.values()) + Counter(duplicate=3)
    for (result, params), (_, expected) in zip(train(network), clean):
        assert result.rejected == {reason: n * CLIENTS for reason, n in expected_counts.items()}
        assert result.answered == CLIENTS and same_bytes(params, expected)


@pytest.mark.parametrize("method, settings", [("fedals", {}), ("ditto", {"lr": 0.1, "own_lr": 0.1, "lam": 0.5})])
def test_bad_and_duplicate_messages_change_nothing_with_other_methods(method, settings):
    network = network_of(lambda blob, up, head: [encode(scale(up, np.inf), head), blob, blob])
    for (result, params), (_, expected) in zip(train(network, 2, method, settings), train(None, 2, method, settings)):
        assert result.rejected == {"non-finite": CLIENTS, "duplicate": CLIENTS} and same_bytes(params, expected)


# Clients that drop out


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("backend, method", [("loop", "fedavg"), ("vmap", "fedavg"), ("kernel", "fedals")])
def test_dropped_out_clients_are_counted_and_a_round_without_answers_changes_nothing(share, backend, method):
    setup = world(method, {"lr": 0.1} if method == "fedavg" else {}, "ranking")
    before = begin(*setup, seed=1)
    rounds = list(run(*setup, rounds=4, dropout=share, backend=backend, seed=1))
    for result in rounds:
        cohort, stayed = setup[2].cohort(result.number - 1, dropout=share, seed=1)
        assert (result.requested, result.answered, result.rejected) == (len(cohort), len(stayed), {})
        assert np.isnan(result.change) == (not len(stayed)) and result.refused is None
    assert [result.number for result in rounds] == [1, 2, 3, 4]
    if share == 1.0:  # every round is abandoned
        assert same_bytes(everything(rounds[-1].state), everything(before)) and rounds[-1].up_bytes == 0
    else:
        assert sum(result.answered for result in rounds) < 4 * PEOPLE
        assert not same_bytes(rounds[-1].state.shared, before.shared)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_lost_messages_equal_absent_clients(share):
    """The result equals a run without those clients."""
    lost = set(np.random.default_rng(0).choice(CLIENTS, round(share * CLIENTS), replace=False).tolist())
    network = lambda blobs: (blob for blob in blobs if decode(blob)[1].person not in lost)
    rounds = train(network, rounds=4)
    assert [(result.answered, result.rejected) for result, _ in rounds] == [(CLIENTS - len(lost), {})] * 4
    if len(lost) < CLIENTS:
        without_lost = train(rounds=4, members=np.array(sorted(set(range(CLIENTS)) - lost)))
        assert same_bytes(rounds[-1][1], without_lost[-1][1])
    else:
        before = begin(*world("fedavg", {"lr": 0.1}, "ranking"), seed=1)
        assert same_bytes(rounds[-1][1], everything(before)) and np.isnan(rounds[-1][0].change)


def test_order_of_messages_does_not_change_the_sum(clean):
    result, params = train(lambda blobs: iter(list(blobs)[::-1]))[-1]
    assert all(torch.allclose(params[name], value, rtol=0, atol=1e-6) for name, value in clean[-1][1].items())
    assert result.answered == CLIENTS and not result.rejected


def test_run_without_any_answer_has_a_note(tmp_path):
    settings = Settings(data=WORLD, method="fedals", set={"k": "3"}, rounds=3, dropout=0.999999, threads=1)
    data = load(WORLD)
    folder = RunFolder.create(tmp_path / "run", settings.model_dump(), data, __version__)
    assert any("Nobody answered" in note for note in execute(prepare(settings, data), folder).notes)


# kill -9 while a checkpoint is written (and 500 times in benchmarks/faults.py)


def test_fifty_kills_while_saving_leave_a_valid_checkpoint(tmp_path):
    killing = Path(__file__).parent / "support" / "killing.py"
    command = [sys.executable, str(killing), "saving", "50", "7", str(tmp_path)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert report["kills"] == 50 and not report["torn"] and not report["went_back"]
    assert report["checkpoints_written"] > 10 and report["half_files_left_by_the_next_start"] == 0
    assert report["killed_while_a_file_was_half_written"] > 0  # otherwise this test shows nothing


def test_only_part_files_of_dead_processes_are_removed(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (tmp_path / "plots").mkdir()
    names = [f".state.safetensors.{gone.pid}.part", f"plots/.loss.png.{gone.pid}.part"]
    others = [f".state.safetensors.{os.getppid()}.part", ".of.somebody.part", "state.part", ".1.part"]
    for name in names + others:
        (tmp_path / name).write_bytes(b"half")
    with lock_folder(tmp_path):
        remaining = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*part")}
    assert remaining == set(others)


@pytest.fixture
def new_run(tmp_path):
    """The folder of a run that has not begun to train."""
    settings, data = Settings(data=WORLD, method="fedals", set={"k": "3"}, rounds=3, threads=1), load(WORLD)
    return RunFolder.create(tmp_path / "run", settings.model_dump(), data, __version__)


def test_resume_of_a_run_killed_before_its_items_were_written(new_run):
    (new_run.path / "items.json").unlink()
    assert fedtaste("resume", new_run.path, "--json").code == 0
    assert len(new_run.items(24)["titles"]) == 24


def test_a_half_written_settings_file_does_not_prevent_a_run(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (tmp_path / f".settings.json.{gone.pid}.part").write_text("{")
    assert fedtaste("run", "--data", WORLD, "--set", "k=3", "--rounds", "2", "--json", "--out", tmp_path).code == 0


# A full disk


@contextlib.contextmanager
def file_size_limit(size: int):
    """Limit the size of files, so that a write fails in the middle of a file as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_checkpoint_too_large_for_the_disk_keeps_the_old_one(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save(*state_of_number(1, 1000))
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for size in (0, 1, 100, 100_000):
        with file_size_limit(size), pytest.raises(RunError, match="state.safetensors cannot be written"):
            folder.save(*state_of_number(2, 1000))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents
    folder.save(*state_of_number(2, 1000))
    assert folder.restore(lambda: state_of_number(0, 1000)[0])[0].round == 2


def test_run_on_a_full_disk_fails_and_can_be_resumed(tmp_path):
    with file_size_limit(3000):  # settings fit, and weights do not
        output = fedtaste(*RUN, tmp_path / "run")
    assert (output.code, output.out) == (2, "") and "cannot be written" in output.err and "Traceback" not in output.err
    assert fedtaste("resume", tmp_path / "run", "--json").code == 0 and fedtaste(*RUN, tmp_path / "whole").code == 0
    for name in ("model.safetensors", "final.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# Damaged run folders


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert fedtaste(*RUN, path).code == 0
    return path


@pytest.fixture
def run_copy(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def refused(*args, has=()):
    """The output of a command that failed as a user error whose text, without line breaks, contains these parts."""
    output = fedtaste(*args)
    assert output.code == 2 and output.out == "" and "Traceback" not in output.err, (output.code, output.err)
    assert all(part in output.err.replace("\n", "") for part in has), output.err
    return output


READERS = {  # file -> commands that read it
    "settings.json": ("resume", "report", "recommend"),
    "result.json": ("report", "recommend"),
    "items.json": ("recommend",),
    "plan.json": ("recommend",),
    "model.safetensors": ("recommend",),
}


def args_of(command, path):
    return (command, path, "--json", *(("--likes", "1") if command == "recommend" else ()))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", ["folder", "cut", "empty", "other", "deep", "binary", "list"])
def test_damaged_file_of_a_run_is_refused_by_name(run_copy, name, damage):
    path = run_copy / name
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        half = content[: len(content) // 2]
        other = {"cut": half, "empty": b"", "other": b"{}", "deep": b"[" * 100_000, "list": b"[]"}
        path.write_bytes(other.get(damage, bytes(range(256))))
    for command in READERS[name]:
        if not (name == "plan.json" and damage == "other"):
            refused(*args_of(command, run_copy), has=("run" if name == "settings.json" else name,))
    if name == "plan.json" and damage == "other":  # every value of it has changed
        refused(*args_of("recommend", run_copy), has=("other values of",))


@pytest.mark.parametrize("name", ["state.safetensors", "final.safetensors"])
def test_damaged_checkpoint_is_refused_by_name(run_copy, name):
    (run_copy / "result.json").unlink()
    content = (run_copy / name).read_bytes()
    (run_copy / name).unlink()
    (run_copy / name).mkdir()
    refused("resume", run_copy, "--json", has=(name,))
    (run_copy / name).rmdir()
    for at in range(8, len(content), len(content) // 40):  # a changed bit is detected wherever it is
        (run_copy / name).write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        refused("resume", run_copy, "--json", has=(name, "cannot be read as weights"))


def test_checkpoint_of_another_version_is_refused(tmp_path):
    setup = world("fedavg", {"lr": 0.1}, "ranking")
    state, path = begin(*setup), tmp_path / "state.safetensors"
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
        assert path.stat().st_mode & 0o777 == 0o600  # models tell of people, whatever the umask
        before = path.read_bytes()
        with pytest.raises(RunError, match=word):
            load_state(path, begin(*setup))
        assert path.read_bytes() == before
    doubles = params | {"shared.item": params["shared.item"].double()}
    save_params(path, doubles, {"format": "fedtaste-state-2", "round": 1})
    with pytest.raises(RunError, match="other parameters"):
        load_state(path, begin(*setup))


def test_checkpoint_without_valid_progress_is_refused(tmp_path):
    for progress in ({"curve": 3}, {"phase": 1}, {"x": 1}, [], None, {"best_round": "8"}):
        save_params(tmp_path / "state.safetensors", {}, {"progress": progress})
        with pytest.raises(RunError, match="not a checkpoint"):
            RunFolder(tmp_path).restore(lambda: None)


TAMPERED = {
    "curve": [3, "x", [3], [[]], {"a": 1}], "settings": [3, [], "x"], "notes": [3, [1], {"a": 1}],
    "scale": [[], [1], ["a", "b"]], "rounds": ["x", None, [1], -1, 2.5],
    "seen": [None, 3, [], {"people": 1, "rmse": "x"}],
    "items": [None, "40"], "leak": [3, {"leaks": True}, {"memoriser_curve": [[1, "x"], 3]}], "traffic": [3, [], None],
    "by_client": [3, [1]], "weights": [[[1], 2], {"a": "x"}], "rejected_updates": [3, [1]], "stopped": [3, None],
    "gradients": ["x"], "data": [3, None], "seconds": [[], "x"], "privacy": [3, {"epsilon": "x"}],
    "intervals": [3, {"seen": 1}], "people": ["x"], "new": [3], "unheard_of": [1],
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_result_is_refused(run_copy, name):
    result = json.loads((run_copy / "result.json").read_text())
    for value in TAMPERED[name]:
        (run_copy / "result.json").write_text(json.dumps(result | {name: value}))
        with pytest.raises(RunError, match=f"no usable {name}"):
            RunFolder(run_copy).result()
    refused("report", run_copy, "--json", has=("result.json has no usable", name))


def test_a_result_with_a_missing_key_is_refused(run_copy):
    result = json.loads((run_copy / "result.json").read_text())
    assert RunFolder(run_copy).result().dump() == result
    for name in filter(lambda name: RunResult.model_fields[name].is_required(), result):
        (run_copy / "result.json").write_text(json.dumps({n: v for n, v in result.items() if n != name}))
        with pytest.raises(RunError, match=f"no usable {name}"):
            RunFolder(run_copy).result()


def test_invalid_facts_are_refused(run_copy):
    facts = json.loads((run_copy / "facts.json").read_text())
    for name, value in (("kind", "prose"), ("items", -1), ("scale", [5, 1]), ("shape", "x"), ("unheard_of", 1)):
        (run_copy / "facts.json").write_text(json.dumps(facts | {name: value}))
        with pytest.raises(RunError, match="facts.json has no usable"):
            RunFolder(run_copy).facts()


@pytest.mark.parametrize("name, value", [("rounds", "nine"), ("sead", 0)])
def test_a_wrong_entry_of_the_settings_is_named(run_copy, name, value):
    header = json.loads((run_copy / "settings.json").read_text())
    header["settings"][name] = value
    (run_copy / "settings.json").write_text(json.dumps(header))
    with pytest.raises(RunError, match=f"settings.json holds no settings .*{name}"):
        RunFolder(run_copy).settings()


def test_a_run_of_a_version_that_was_called_tacit_is_refused(run_copy):
    header = json.loads((run_copy / "settings.json").read_text())
    for form, version, writer in (("tacit-run-1", "0.6.0", "tacit 0.6.0"), ("fedtaste-run-9", "2.0", "fedtaste 2.0")):
        (run_copy / "settings.json").write_text(json.dumps(header | {"format": form, "version": version}))
        for command in ("resume", "report", "recommend"):
            refused(
                *args_of(command, run_copy), has=(f"was written by {writer}, which", f"Use {writer}, or run again.")
            )


@pytest.mark.parametrize(
    "content", [{}, {"runs": 3}, {"runs": []}, {"runs": [1]}, {"runs": ["../run"]}, {"runs": ["/"]}]
)
def test_comparison_file_with_wrong_runs_is_refused(run_copy, content):
    (run_copy / "compare.json").write_text(json.dumps(content))
    refused("report", run_copy, "--json", has=("compare.json",))


def test_file_in_place_of_a_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for command in ("resume", "report", "recommend"):
        refused(*args_of(command, tmp_path / "file"), has=("is not a run folder",))
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


def test_second_process_is_refused_on_the_same_run(new_run):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(new_run.path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "here\n"
        before = {path.name: path.read_bytes() for path in new_run.path.iterdir()}
        output = refused("resume", new_run.path, "--json", has=("is being worked on by another process",))
        assert f"({other.pid})" in output.err
        refused("run", "--data", WORLD, "--json", "--out", new_run.path, has=("another process",))
        assert {path.name: path.read_bytes() for path in new_run.path.iterdir()} == before
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert fedtaste("resume", new_run.path, "--json").code == 0  # the lock ended with the process


def test_lock_is_released_when_the_work_ends_or_fails(new_run, monkeypatch):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_folder(new_run.path):
            raise ZeroDivisionError
    with lock_folder(new_run.path), pytest.raises(RunError, match="another process"), lock_folder(new_run.path):
        raise AssertionError("two at once")
    with pytest.raises(RunError, match="cannot be opened"), lock_folder(new_run.path / "none"):
        raise AssertionError("nowhere")
