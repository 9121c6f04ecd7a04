"""Splits, negative samples, ranks, metrics and protocols, against exact answers; and the public functions of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtaste.core import Download, Upload
from fedtaste.data import splits
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import Ragged, distinct_negatives, key_of, samples
from fedtaste.data.synthetic import synthetic
from fedtaste.engine.run import run
from fedtaste.engine.store import Store
from fedtaste.errors import RunError
from fedtaste.evaluation import protocol
from fedtaste.evaluation.metrics import interval, ranking_metrics, rating_intervals, rating_metrics
from fedtaste.evaluation.scoring import full_ranks, sampled_ranks
from fedtaste.federation import of_histories
from fedtaste.methods import fedals, fedmf
from fedtaste.models import factorization
from fedtaste.tasks import ranking as tasks
from fedtaste.tasks.serve import top_items
from fedtaste.wire.messages import Ledger, decode, encode, message_length
from fedtaste.wire.validation import refusal
from support.worlds import ITEMS, histories


def ragged(*rows):
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    items = np.array([item for row in rows for item in row], np.int32)
    return Histories(starts, items, np.ones(len(items), np.float32))


def lists(h):
    return [h.of(person).tolist() for person in range(h.people)]


def test_leave_one_out_holds_out_the_newest_items():
    split = splits.leave_one_out(ragged([5, 6, 7, 8], [1, 2], [3]), 300, seed=0)
    assert lists(split.train) == [[5, 6], [1], [3]]
    assert lists(split.valid) == [[7], [], []]
    assert lists(split.test) == [[8], [2], []]
    assert "1 person has a single interaction" in " ".join(split.notes)


def test_ties_in_time_are_broken_neither_by_item_numbers_nor_by_rows():
    """With equal times the held-out item is the last row or the largest number only as often as by chance."""
    n, people = 20, 400
    person = np.repeat(np.arange(people, dtype=np.int32), n)
    item = np.tile(np.arange(n, dtype=np.int32), people)
    names = tuple(map(str, range(people))), tuple(map(str, range(n)))
    data = Interactions("ties", person, item, *names, time=np.zeros(len(person)))
    newest = splits.leave_one_out(data.histories(3), 500, seed=3).test.items
    assert 0.02 < (newest == n - 1).mean() < 0.09  # 1/20 by chance
    order = np.random.default_rng(0).permutation(len(person))
    shuffled = Interactions("ties", person[order], item[order], *names, time=np.zeros(len(person)))
    assert (splits.leave_one_out(shuffled.histories(3), 500, seed=3).test.items == newest).all()


def test_temporal_split_cuts_at_the_same_times_for_everybody():
    data = synthetic(60, 80, 1500)
    split = splits.temporal(data, 0)
    times = {(p, i): t for p, i, t in zip(data.person, data.item, data.time)}
    part_times = [
        [times[p, i] for p in range(part.people) for i in part.of(p)] for part in (split.train, split.valid, split.test)
    ]
    assert max(part_times[0]) <= min(part_times[1]) and max(part_times[1]) <= min(part_times[2])
    assert len(split.train) + len(split.valid) + len(split.test) == len(data)


def test_support_and_query_divide_every_history():
    data = histories()
    support, query = splits.support_query(data, 0.5, seed=1)
    assert (support.lengths >= 1).all() and (query.lengths >= 1).all()
    assert [sorted(row) for row in lists(support.then(query))] == [sorted(row) for row in lists(data)]


def test_held_out_people_and_folds_have_the_right_sizes():
    assert splits.held_out_people(50, 0.1, 0).sum() == 5
    fold = splits.folds(53, 10, 0)
    assert sorted(np.bincount(fold)) == [5] * 7 + [6] * 3


@given(st.integers(0, 10_000), st.integers(0, 5))
def test_negatives_are_neither_in_the_history_nor_forbidden(seed, round):
    data, forbidden = histories(seed=seed % 7), ragged(*[[person % ITEMS] for person in range(24)])
    people = np.array([3, 0, 11])
    options = {"catalogue": ITEMS, "negatives": 3, "batch": 0, "key": key_of(seed, 0, round), "forbidden": forbidden}
    drawn = samples(data, people, **options)
    for place, person in enumerate(people):
        part = slice(drawn.starts[place], drawn.starts[place + 1])
        items, targets = drawn.inputs[part], drawn.targets[part]
        assert sorted(items[targets == 1]) == sorted(data.of(person))
        assert (targets == 0).sum() == 3 * len(data.of(person))
        assert not set(items[targets == 0]) & ({*data.of(person)} | {person % ITEMS})
    single = samples(data, people[1:2], **options)
    assert (single.inputs == drawn.inputs[drawn.starts[1] : drawn.starts[2]]).all()  # independent of other people


def test_clean_negatives_include_held_out_items_and_published_ones_do_not():
    data, held_out = ragged(list(range(10))), ragged([20])

    def count(forbidden: Histories | None) -> int:
        """How often 8,000 draws over 20 items give the held-out item."""
        options = {"catalogue": 30, "negatives": 4, "batch": 0, "forbidden": forbidden}
        draws = [samples(data, np.array([0]), key=key_of(0, 0, number), **options) for number in range(200)]
        return sum(int((drawn.inputs == 20).sum()) for drawn in draws)

    assert 300 < count(None) < 500 and count(held_out) == 0


def test_a_person_with_all_items_gets_no_negatives():
    drawn = samples(ragged([0, 1, 2]), np.array([0]), catalogue=3, negatives=4, batch=0, key=key_of(0, 0, 0))
    assert sorted(drawn.inputs) == [0, 1, 2]


@given(st.integers(1, 120), st.integers(0, 1000))
def test_evaluation_negatives_are_distinct_and_not_in_the_history(count, seed):
    data = histories()
    drawn = distinct_negatives(data, ITEMS, count, key_of(seed, 1, 0))
    for person in range(data.people):
        items = drawn.of(person).tolist()
        assert len(items) == len(set(items)) == min(count, ITEMS - len(data.of(person)))
        assert not set(items) & set(data.of(person).tolist())


def test_padding_fills_short_batches_and_masks_the_filling():
    examples = Ragged(np.array([0, 5, 7]), np.arange(7, dtype=np.int32), np.ones(7, np.float32), batch=2).pad()
    assert examples.inputs.shape == (2, 3, 2)
    assert examples.inputs[0].tolist() == [[0, 1], [2, 3], [4, 0]]
    assert examples.mask[0].tolist() == [[1, 1], [1, 1], [1, 0]]
    assert examples.mask[1].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_metrics_of_known_ranks():
    ranks, owners = np.array([1, 10, 11, 2, 2]), np.array([0, 1, 2, 3, 3])
    metrics = ranking_metrics(ranks, owners)
    assert metrics["hr@10"].tolist() == [1, 1, 0, 1]
    assert metrics["ndcg@10"][:3] == pytest.approx([1, 1 / np.log2(11), 0])
    places_2_and_3 = (1 / np.log2(3) + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    assert metrics["ndcg@10"][3] == pytest.approx(places_2_and_3)
    assert metrics["mrr@10"].tolist() == [1, 0.1, 0, 0.5]
    assert metrics["recall@10"].tolist() == [1, 1, 0, 1]


def test_ties_count_against_the_positive():
    scores = torch.tensor([[1.0, 1.0, 0.0, 2.0]])
    positives, negatives = np.array([[True, False, False, False]]), np.array([[False, True, True, True]])
    assert sampled_ranks(scores, positives, negatives).tolist() == [3]
    assert sampled_ranks(torch.full((1, 4), torch.nan), positives, negatives).tolist() == [4]  # NaN never wins
    assert full_ranks(torch.zeros(1, 6), ragged([1, 2]), ragged([3]), np.array([0])).tolist() == [4]


def test_undefined_scores_are_the_worst_in_both_rankings():
    mine, theirs = np.array([[False, False, True]]), np.array([[True, True, False]])
    for scores in ([1.0, 0.0, torch.nan], [1.0, 0.0, torch.inf], [torch.nan] * 3):
        assert sampled_ranks(torch.tensor([scores]), mine, theirs).tolist() == [3]
        assert full_ranks(torch.tensor([scores]), ragged([]), ragged([2]), np.array([0])).tolist() == [3]
    seen = full_ranks(torch.tensor([[1.0, 0.0, torch.nan]]), ragged([0]), ragged([2]), np.array([0]))
    assert seen.tolist() == [2]  # the history is not ranked against


def test_full_ranks_leave_out_history_and_other_positives():
    scores = torch.tensor([[9.0, 8, 7, 6, 5]])
    assert full_ranks(scores, ragged([0]), ragged([2, 4]), np.array([0])).tolist() == [2, 3]


def test_rating_metrics_and_intervals_are_exact():
    errors = np.array([0.5, -0.5, 2.0, 0.0])
    assert rating_metrics(errors) == {"rmse": pytest.approx(np.sqrt(4.5 / 4)), "accuracy": 0.75}
    low, high = rating_intervals(errors, np.array([0, 0, 1, 1]))["rmse"]
    assert low <= np.sqrt(4.5 / 4) <= high
    low, high = interval(np.r_[np.ones(500), np.zeros(500)])
    assert 0.46 < low < 0.49 and 0.51 < high < 0.54  # 1.96 x .0158


def test_intervals_do_not_depend_on_how_many_resamples_are_drawn_at_once(monkeypatch):
    values = np.random.default_rng(1).uniform(size=37)
    expected = interval(values)
    for at_once in (1, 37 * 7, 10**6):
        monkeypatch.setattr("fedtaste.evaluation.metrics.AT_ONCE", at_once)
        assert interval(values) == expected


def test_the_leak_detector_distinguishes_the_protocols():
    """Remembering drawn negatives beats popularity under the published protocol and does not under the clean one."""
    data = synthetic(300, 400, 12_000)
    history = data.histories()
    split = splits.leave_one_out(history, 400, seed=0)
    test = protocol.HeldOut(split.test, split.test_negatives)
    everybody = np.flatnonzero(split.test.lengths)
    popularity = protocol.popularity_hr(np.bincount(split.train.items, minlength=400), test, everybody)
    held_out = split.valid.then(split.test)
    ((_, published),) = protocol.memoriser(split.train, held_out, test, 400, 0)
    ((_, clean),) = protocol.memoriser(split.train, None, test, 400, 0)
    assert published > 0.9 > popularity > clean
    assert protocol.beyond_chance(published, popularity, 300) and not protocol.beyond_chance(clean, popularity, 300)
    assert protocol.guessing_hr(test, everybody) == pytest.approx(0.1)  # 10 of 100
    assert protocol.guessing_hr(protocol.HeldOut(split.test, split.valid), everybody) == 1  # both of two candidates
    assert not protocol.beyond_chance(0.5, 0.4, 50)  # a difference on little data is chance
    path = protocol.memoriser(split.train, held_out, test, 400, 0, rounds=(1, 10, 50))
    assert [n for n, _ in path] == [1, 10, 50] and path[2][1] == published  # the same value as above
    assert path[0][1] < path[1][1] < published  # more rounds leak more


def test_the_ledger_counts_real_messages():
    up = Upload({"item": torch.randn(7, 3)}, torch.tensor(2.0))
    down = Download({"item": torch.randn(7, 3), "bias": torch.zeros(7)}, torch.tensor(0.0))
    ledger = Ledger()
    ledger.sent_up(up, 3)
    ledger.sent_down(down, 5)
    assert ledger.up_bytes == 3 * len(encode(up)) and ledger.down_bytes == 5 * len(encode(down))
    back, _ = decode(encode(up))
    assert torch.equal(back.total["item"], up.total["item"]) and back.weight == up.weight


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_a_message(blob):
    with pytest.raises(ValueError):
        decode(blob)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_message_with_a_changed_byte_is_refused_or_a_valid_upload(at, byte):
    up = Upload({"item": torch.ones(4, 3)}, torch.tensor(2.0))
    blob = bytearray(encode(up))
    blob[at % len(blob)] = byte
    try:
        upload, _ = decode(bytes(blob))
    except ValueError:
        return
    if refusal(upload, up.total) is None:
        assert torch.isfinite(upload.total["item"]).all() and 0 < float(upload.weight) <= 1e7


def test_the_store_keeps_touched_rows_only():
    store = Store.fresh({"item": torch.zeros(1000, 2), "user": torch.zeros(3)}, 4, ["item"])
    rows = torch.tensor([[3, 7, -1]])
    new = torch.tensor([[[1.0, 1], [0, 0], [5, 5]]])  # the second did not move, the third is padding
    store.put(np.array([2]), {"item": new, "user": torch.ones(1, 3)}, rows)
    pages = store.touched["item"]
    assert pages.used.tolist() == [0, 0, 1, 0] and pages.ids[0, 0] == 3 and pages.pages == 1
    store.put(np.array([2]), {"item": torch.tensor([[[9.0, 9]]]), "user": torch.ones(1, 3)}, torch.tensor([[1]]))
    table = store.gather(np.array([2]))["item"][0]
    assert table[[1, 3]].tolist() == [[9, 9], [1, 1]] and float(table.abs().sum()) == 20
    assert store.gather(np.array([2]), torch.tensor([[3, 5]]))["item"][0].tolist() == [[1, 1], [0, 0]]
    copy = Store.fresh(store.initial, 4, ["item"])
    copy.unpack(store.pack())
    assert torch.equal(copy.gather(np.arange(4))["item"], store.gather(np.arange(4))["item"])


def test_negatives_of_the_user_are_cleaned_and_completed():
    """Test items and repeated pairs are left out, people without negatives get drawn ones, and notes report it."""
    test, drawn = ragged([1], [2], []), ragged([7, 8], [8, 9], [7])
    kept, notes = splits._user_negatives(ragged([1, 5, 5], [], [3]), test, drawn)
    assert lists(kept) == [[5], [8, 9], [3]]
    assert "2 supplied negatives are left out" in notes[1] and "1 person has no supplied negatives" in notes[2]


def test_negatives_exclude_pairs_that_are_in_train_and_test():
    everything = ragged(list(range(30)) + list(range(25)))  # 25 items twice
    negatives = splits._draw_negatives(everything, 40, 0)
    assert sorted(negatives.test.of(0)) == list(range(30, 40))


def test_evaluation_is_limited_to_a_number_of_people_with_a_note(monkeypatch):
    data = synthetic(60, 50, 900)
    options = {"protocol_name": "clean", "split_name": "leave-one-out", "new_people": 0.1, "seed": 0}
    whole = tasks.ranking_task(data, **options)
    assert len(whole.evaluated) == 60 and not any("are evaluated" in note for note in whole.notes)
    monkeypatch.setattr(tasks, "MOST_EVALUATED", 20)
    part = tasks.ranking_task(data, **options)
    assert len(part.evaluated) == 20 and "20 of the people are evaluated, a seeded choice." in part.notes
    assert tasks.MOST_EVALUATED == 20 and whole.people == part.people == 60


# Public functions with default arguments


def test_run_asks_the_federation_for_the_examples_that_the_method_needs():
    """FedALS learns from histories, so the number of negatives of the federation must not change its model."""
    data = synthetic(60, 40, 900).histories()
    model = factorization(40, k=6)
    tables = []
    for negatives in (0, 4):
        federation = of_histories(data, 40, negatives=negatives)
        *_, last = run(fedals(model), model, federation, rounds=3)
        tables.append(last.state.shared["item"])
    assert torch.equal(*tables)
    samples = federation.examples(np.arange(3), 0, "samples")
    assert len(samples.targets) == 5 * len(federation.examples(np.arange(3), 0, "history").targets)


@pytest.mark.parametrize("method", [fedmf, fedals])
def test_top_items_depend_on_the_likes(method):
    """A newcomer's private parameters adapt to the likes, as they do in evaluation."""
    data = synthetic(60, 40, 900).histories()
    model = factorization(40, k=6)
    built = method(model)
    *_, last = run(built, model, of_histories(data, 40), rounds=6)
    lists = [top_items(built, model, last.state, likes, n=10) for likes in ([0, 1, 2], [30, 31, 32], [0, 1, 2])]
    assert lists[0] == lists[2] and lists[0] != lists[1]
    assert not {0, 1, 2} & set(lists[0]) and len(set(lists[0])) == 10


def test_a_round_never_gives_private_parameters_of_a_later_round():
    data = synthetic(30, 20, 300).histories()
    model = factorization(20, k=4)
    method, federation = fedmf(model), of_histories(data, 20)
    rounds, users, copies = [], [], []
    for result in run(method, model, federation, rounds=3):
        rounds.append(result)
        users.append(result.state.private.gather(np.arange(30))["user"])
        copies.append(result.state.snapshot())
    assert not torch.equal(users[0], users[1])
    for copy, user in zip(copies, users):
        assert torch.equal(copy.private.gather(np.arange(30))["user"], user)
    assert torch.equal(rounds[-1].state.private.gather(np.arange(30))["user"], users[-1])
    for result in rounds[:-1]:
        with pytest.raises(RunError, match="snapshot"):
            _ = result.state.private
    with pytest.raises(RunError, match="snapshot"):  # nor can a run continue from it
        list(run(method, model, federation, rounds=3, state=rounds[0].state))
    *_, resumed = run(method, model, federation, rounds=3, state=copies[0])
    assert torch.equal(resumed.state.private.gather(np.arange(30))["user"], users[-1])
    assert torch.equal(resumed.state.shared["item"], rounds[-1].state.shared["item"])


def test_rounds_without_private_parameters_stay_readable():
    data, model = synthetic(30, 20, 300).histories(), factorization(20, k=4)
    rounds = list(run(fedals(model), model, of_histories(data, 20), rounds=2))
    assert rounds[0].state.private.people == 30
    assert top_items(fedals(model), model, rounds[0].state, [1, 2], n=3)


def test_run_refuses_options_that_it_does_not_have():
    model = factorization(5, k=2)
    with pytest.raises(TypeError, match="cohrt"):
        run(fedals(model), model, None, rounds=1, cohrt=2)
    with pytest.raises(TypeError, match="rounds"):
        run(fedals(model), model, None)


@pytest.mark.parametrize("kind", (torch.float32, torch.int8, torch.int64))
def test_message_lengths_are_those_of_encoded_messages(kind):
    for shape in ((3, 5), (4, 5), (), (0, 7)):
        params = {"item": torch.ones(shape, dtype=kind), "bias": torch.ones(2)}
        for message in (Upload(params, torch.tensor(2.0)), Download(params, torch.tensor(1.0))):
            assert message_length(message) == len(encode(message))


@pytest.mark.parametrize("people, copied", (([0, 1, 2, 3], False), ([2, 3], False), ([0, 1, 3], False), ([1, 0], True),
                                            ([0, 3, 2], True), ([0, 0], True), ([], True)))  # fmt: skip
def test_histories_of_some_people_are_copied_only_where_their_entries_move(people, copied):
    all_entries = Histories(np.array([0, 2, 5, 5, 6]), np.arange(6, dtype=np.int32), np.ones(6, np.float32))
    part = all_entries.take(np.array(people, np.int64))
    expected = [item for p in people for item in range(all_entries.starts[p], all_entries.starts[p + 1])]
    assert part.items.tolist() == expected and part.lengths.tolist() == [[2, 3, 0, 1][p] for p in people]
    assert np.shares_memory(part.items, all_entries.items) == (not copied)
