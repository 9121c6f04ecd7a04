"""Secure sums: exact whatever drop-outs there are, masks that hide, devices that refuse, and backends that agree."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from fedtaste.core import Stage, StageContext, Upload
from fedtaste.engine.run import run
from fedtaste.errors import ProtocolError, SettingError
from fedtaste.wire.masks import KEY, Device, Server, expand, run_session, stream
from fedtaste.wire.neighbour_graph import LOST, RISK, Group, degree, share_threshold
from fedtaste.wire.secure_sums import SecureSum, from_words, to_words
from fedtaste.wire.validation import LIMIT, MAX_WEIGHT
from support.worlds import PEOPLE, world

RARE = 1e-7  # a chi-square test of true randomness fails so often
SEAT = StageContext(bytes(32), 3, 30.0)


def uploads(people, numbers: int = 60, seed: int = 0, scale: float = 0.1) -> dict[int, Upload]:
    rng = np.random.default_rng(seed)

    def one() -> Upload:
        table = torch.from_numpy(rng.normal(0, scale, (numbers // 3, 3)).astype(np.float32))
        bias = torch.from_numpy(rng.normal(0, scale, 4).astype(np.float32))
        return Upload({"item": table, "bias": bias}, torch.tensor(float(rng.integers(1, 50))))

    return {int(who): one() for who in people}


def light(sent: dict[int, Upload]) -> dict[int, Upload]:
    return {who: Upload(upload.total, torch.tensor(1.0)) for who, upload in sent.items()}


def added(secure: SecureSum, sent: dict[int, Upload]) -> Upload:
    """What the vmap backend does."""
    total = None
    for upload in sent.values():
        total = secure.encode(upload) if total is None else total + secure.encode(upload)
    assert total is not None
    return secure.decode(total)


def same(a: Upload, b: Upload) -> bool:
    names = set(a.total) == set(b.total)
    return names and torch.equal(a.weight, b.weight) and all(torch.equal(a.total[n], b.total[n]) for n in a.total)


def looks_uniform(words: np.ndarray) -> bool:
    counts = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
    return chisquare(counts).pvalue > RARE


def ring_of(people: int, width: int, least: int = 3) -> Group:
    order = tuple(np.random.default_rng(0).permutation(people).tolist())
    return Group(order, width, share_threshold(width), least)


# The sum is exact


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(
    "secure",
    [
        SecureSum(),
        SecureSum(group=10),
        SecureSum(neighbours=20),
        SecureSum(10, clip=1.0, most=30),
        SecureSum(15, clip=1.0),
    ],
    ids=lambda s: f"group={s.group} bits={s.bits} neighbours={s.neighbours}",
)
def test_sum_is_exact_with_drop_outs_of_both_kinds(secure, share):
    """A tenth or three tenths of every group are gone: half before they sent, half after, whose uploads count."""
    asked = np.arange(100, 130)
    gone = [who for group in secure.groups(asked, SEAT) for who in group.people[1 :: round(1 / share) if share else 99]]
    gone = gone[: round(share * 30)]
    before, after = gone[::2], gone[1::2]
    sent = uploads(sorted(set(asked.tolist()) - set(before)))
    sent = light(sent) if secure.clip else sent
    got = secure.run_protocol(sent, asked, SEAT, silent=after)
    assert got is not None and len(gone) == round(share * 30)
    assert same(got, added(secure, sent))
    for name in ("item", "bias"):
        plain = sum(upload.total[name].double() for upload in sent.values())
        float32 = 1e-7 * plain.abs()  # the answer is one
        assert bool(((got.total[name] - plain).abs() <= len(sent) * secure.step + float32).all())
    assert float(got.weight) == sum(float(upload.weight) for upload in sent.values())  # whole weights are exact


def test_each_drop_out_kind_alone():
    secure, asked = SecureSum(), np.arange(9)
    sent = uploads(asked)
    kept = {who: sent[who] for who in range(6)}
    assert same(secure.run_protocol(kept, asked, SEAT), added(secure, kept))  # three never sent: without them
    assert same(
        secure.run_protocol(sent, asked, SEAT, silent=[6, 7, 8]), added(secure, sent)
    )  # three fell silent: with them


def test_too_many_drop_outs_abandon_the_group_and_open_nothing():
    secure, asked = SecureSum(group=9), np.arange(18)
    first, second = secure.groups(asked, SEAT)
    sent = uploads([*first.people[:5], *second.people])  # 5 of 9 are left where 6 are needed
    broken, whole = secure.sessions(sent, asked, SEAT)
    assert broken.total is None and broken.failure == "5 of 9 people are left and 6 are needed"
    assert not broken.revealed and broken.bytes["reveals"] == 0  # nobody was even asked
    assert whole.total is not None and whole.failure is None
    there = {who: sent[who] for who in second.people}
    assert same(secure.run_protocol(sent, asked, SEAT), added(secure, there))
    assert sorted(secure.recoverable(asked, np.array(sorted(sent)), SEAT)) == sorted(second.people)
    lost = {who: sent[who] for who in first.people[:5]}
    assert secure.run_protocol(lost, asked, SEAT) is None
    late = secure.sessions(sent, asked, SEAT, silent=second.people[:4])[1]  # too many after they sent
    assert late.total is None and late.failure == "5 shares of somebody were revealed and 6 are needed"


def test_a_share_that_does_not_fit_abandons():
    group = Group((0, 1, 2, 3), 3, 3, 3)
    devices, server = meet(group)
    for person in (0, 1, 2):
        server.receive_vector(person, devices[person].mask(np.zeros(4, np.uint64), server.ciphertexts_for(person)))
    alive = server.alive()
    for person in alive:
        shares = devices[person].reveal(alive)
        server.receive_reveal(person, shares | ({3: bytes(16)} if person == 1 else {}))
    assert server.unmask() is None and "person 3 do not fit" in server.failure


# Who is summed with whom


def test_groups_stay_the_same_for_a_run_and_are_never_too_small():
    asked = np.arange(7, 107)
    for many, size in ((100, 10), (99, 10), (19, 10), (10, 10), (50, 3)):
        groups = SecureSum(group=size).groups(asked[:many], SEAT)
        assert sorted(p for g in groups for p in g.people) == asked[:many].tolist()
        assert len(groups) == many // size and all(len(g.people) >= size for g in groups)
    again = [g.people for g in SecureSum(group=10).groups(asked, SEAT)]
    assert again == [g.people for g in SecureSum(group=10).groups(asked, SEAT)]
    assert again == [g.people for g in SecureSum(group=10).groups(asked, SEAT._replace(key=b"1" * 32, round=9))]
    other = SEAT._replace(run_key=b"1" * 32)
    assert again != [g.people for g in SecureSum(group=10).groups(asked, other)]


@pytest.mark.parametrize("secure, people", [(SecureSum(), 2), (SecureSum(group=10), 9), (SecureSum(), 0)])
def test_a_cohort_too_small_reveals_nothing(secure, people):
    asked = np.arange(people)
    assert len(secure.recoverable(asked, asked, SEAT)) == 0
    assert secure.run_protocol(uploads(asked), asked, SEAT) is None


def test_never_a_sum_of_fewer_than_three():
    secure = SecureSum(threshold=0.51)
    asked = np.arange(3)
    assert len(secure.recoverable(asked, asked[:2], SEAT)) == 0
    assert secure.run_protocol(uploads(asked[:2]), asked, SEAT) is None
    assert secure.recoverable(asked, asked, SEAT).tolist() == [0, 1, 2]


@given(st.integers(3, 60), st.data())
@effort(max_examples=60)
def test_standing_says_whom_collect_would_open(people, data):
    asked = np.arange(people)
    answering = np.array(sorted(data.draw(st.sets(st.sampled_from(range(people))))), np.int64)
    secure = SecureSum(data.draw(st.sampled_from([None, 3, 10])), neighbours=data.draw(st.sampled_from([None, 6])))
    standing = set(secure.recoverable(asked, answering, SEAT).tolist())
    for group in secure.groups(asked, SEAT):
        alive = set(group.people) & set(answering.tolist())
        enough = len(alive) >= max(3, math.ceil(2 / 3 * len(group.people) - 1e-9), len(group.people) // 2 + 1)
        if not group.complete:
            enough = enough and all(len(alive & set(group.holders(who))) >= group.threshold for who in group.people)
        assert set(group.people) & standing == (alive if enough else set())
    assert standing <= set(answering.tolist())


def in_one_piece(group: Group, alive: set[int]) -> bool:
    reached, border = set(), {min(alive)}
    while border:
        reached |= border
        border = {n for who in border for n in group.neighbours(who) if n in alive} - reached
    return reached == alive


def test_a_ring_that_stands_is_in_one_piece():
    """Pieces without masks between them would be seen as two sums. Every set of survivors of rings of 12 is tried; with
    one share fewer needed, some of those that stand are in pieces."""
    ring = ring_of(12, 4)
    looser = Group(ring.people, 4, ring.threshold - 1, 3)
    sets = [{who for who in range(12) if bits >> who & 1} for bits in range(1, 2**12)]
    standing = [alive for alive in sets if not ring.shortfall(alive)]
    assert len(standing) > 20 and all(in_one_piece(ring, alive) for alive in standing)
    assert not all(in_one_piece(looser, alive) for alive in sets if not looser.shortfall(alive))


def test_a_ring_is_narrow_and_wide_enough():
    widths = {n: degree(n) for n in (300, 943, 6040, 100_000)}
    assert widths == {300: 100, 943: 112, 6040: 134, 100_000: 164}  # like the logarithm
    for people, width in widths.items():
        too_few = binom.cdf(share_threshold(width) - 1, width + 1, 1 - LOST)
        assert people * too_few <= RISK < people * binom.cdf(share_threshold(width - 2) - 1, width - 1, 1 - LOST)
    group = SecureSum().groups(np.arange(943), SEAT)[0]
    assert all(len(group.neighbours(who)) == 112 and who not in group.neighbours(who) for who in group.people)
    assert all(who in group.neighbours(other) for who in group.people[:20] for other in group.neighbours(who))


# What the server sees


def meet(group: Group) -> tuple[dict[int, Device], Server]:
    """Devices that have advertised and shared."""
    server, devices = Server(group), {person: Device(person, group) for person in group.people}
    for person, device in devices.items():
        server.receive_keys(person, device.advertise())
    for person, device in devices.items():
        server.receive_shares(person, device.share(server.keys_for(person)))
    return devices, server


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("zeros", [True, False])
def test_a_masked_upload_is_indistinguishable_from_uniform(kind, zeros):
    group = Group((0, 1, 2, 3, 4), 4, 4, 4)
    rng = np.random.default_rng(0)
    plain = {p: np.zeros(20_000, kind) if zeros else rng.integers(0, 9, 20_000).astype(kind) for p in group.people}
    once, twice = run_session(group, plain), run_session(group, plain)
    assert np.array_equal(once.total, sum(plain.values())) and np.array_equal(once.total, twice.total)
    for person in group.people:
        assert not looks_uniform(plain[person])  # the test can tell
        assert looks_uniform(once.masked[person])
        assert looks_uniform(once.masked[person] - twice.masked[person])  # masks are new every time
        assert (once.masked[person] == twice.masked[person]).mean() < 0.01
    silent = run_session(group, plain, silent=[2])  # and of one who is gone before the end
    assert looks_uniform(silent.masked[2]) and np.array_equal(silent.total, once.total)


@pytest.mark.parametrize("own_masks", [True, False], ids=["as received", "own masks known"])
def test_any_part_of_a_group_still_looks_uniform(own_masks):
    """Also to a server that knows the own masks, as it does in the end: what is left hides all but the sum."""
    group = Group((3, 8, 1, 6, 2), 4, 4, 4)
    devices, server = meet(group)
    plain = {person: np.full(8_000, person, np.uint32) for person in group.people}
    seen = {p: devices[p].mask(plain[p], server.ciphertexts_for(p)) for p in group.people}
    if not own_masks:
        seen = {p: seen[p] - stream(expand(devices[p]._own_seed, "own mask"), seen[p]) for p in group.people}
    for many in range(1, 5):
        for part in combinations(group.people, many):
            assert looks_uniform(np.sum([seen[p] for p in part], axis=0, dtype=np.uint32)), part
    everybody = np.sum([seen[p] for p in group.people], axis=0, dtype=np.uint32)
    assert looks_uniform(everybody) if own_masks else np.array_equal(everybody, np.full(8_000, 20, np.uint32))


def test_letters_do_not_tell_shares_to_the_server():
    devices, server = meet(Group(tuple(range(6)), 5, 4, 4))
    joined = b"".join(ciphertext for mine in server.ciphertexts.values() for ciphertext in mine.values())
    for device in devices.values():
        for secret in (
            device._own_seed,
            device._key_seed,
            *(p for pair in device._shares.values() for p in (pair[:16],)),
        ):
            assert secret not in joined


# What a device refuses


def ready(people: int = 6) -> tuple[dict[int, Device], Server]:
    devices, server = meet(Group(tuple(range(people)), people - 1, 4, 4))
    for person, device in devices.items():
        server.receive_vector(person, device.mask(np.zeros(8, np.uint32), server.ciphertexts_for(person)))
    return devices, server


def test_a_device_never_reveals_both_shares():
    devices, server = ready()
    alive = [0, 1, 2, 3, 4]
    shares = devices[0].reveal(alive)
    assert devices[0].reveal(alive) == shares  # asking again tells nothing new
    for other in ([0, 1, 2, 3], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5]):
        with pytest.raises(ProtocolError, match="both shares of person"):
            devices[0].reveal(other)
    for owner, share in shares.items():
        own, key = devices[0]._shares[owner][:16], devices[0]._shares[owner][16:]
        assert share == (own if owner in alive else key) and own != key


def test_a_device_reveals_nothing_when_too_few_are_left_or_it_is_said_to_be_gone():
    devices, _ = ready()
    with pytest.raises(ProtocolError, match="only 3 are left, and 4 are needed"):
        devices[0].reveal([0, 1, 2])
    with pytest.raises(ProtocolError, match="reveals nothing"):
        devices[0].reveal([1, 2, 3, 4, 5])
    assert devices[0]._revealed is None
    fresh, _ = meet(Group((0, 1, 2, 3), 3, 3, 3))
    with pytest.raises(ProtocolError, match="reveals nothing"):  # it has not sent
        fresh[0].reveal([0, 1, 2, 3])


def test_a_device_sends_and_shares_once():
    devices, server = ready()
    with pytest.raises(ProtocolError, match="one vector"):
        devices[0].mask(np.zeros(8, np.uint32), server.ciphertexts_for(0))
    with pytest.raises(ProtocolError, match="shared its secrets already"):
        devices[0].share(server.keys_for(0))
    lonely = Device(0, Group((0, 1, 2, 3), 3, 3, 3))
    with pytest.raises(ProtocolError, match="keys of person 3 are missing"):
        lonely.share({1: bytes(2 * KEY), 2: bytes(2 * KEY)})


@pytest.mark.parametrize("where", ["nonce", "text", "tag", "short", "empty", "of another", "to another"])
def test_a_changed_letter_is_refused(where):
    devices, server = meet(Group((0, 1, 2, 3), 3, 3, 3))
    ciphertexts = dict(server.ciphertexts_for(0))
    at = {"nonce": 0, "text": 20, "tag": 59}.get(where)
    changed = bytearray(ciphertexts[1])
    if at is not None:
        changed[at] ^= 1
    swaps = {
        "short": ciphertexts[1][:30],
        "empty": b"",
        "of another": ciphertexts[2],
        "to another": server.ciphertexts_for(2)[1],
    }
    ciphertexts[1] = swaps.get(where, bytes(changed))
    with pytest.raises(ProtocolError, match="from person 1 to person 0 were changed"):
        devices[0].mask(np.zeros(8, np.uint32), ciphertexts)


def test_a_key_that_is_none_is_refused():
    group = Group((0, 1, 2), 2, 3, 3)
    with pytest.raises(ProtocolError, match="public key"):
        Device(0, group).share({1: bytes(2 * KEY), 2: bytes(2 * KEY)})  # a point of low order: nothing would be secret


def test_a_device_without_enough_letters_sends_nothing():
    devices, server = meet(Group(tuple(range(6)), 5, 4, 4))
    with pytest.raises(ProtocolError, match="at least 4 people, got 3"):
        devices[0].mask(np.zeros(8, np.uint32), {who: server.ciphertexts_for(0)[who] for who in (1, 2)})


# Whole numbers

finite = st.floats(-1e4, 1e4, width=32)
inside = st.floats(-1, 1, width=32)


@given(st.lists(finite, min_size=1, max_size=20), st.floats(1 / 1024, 1e7, width=32))
def test_cut_towards_zero_within_a_step(numbers, weight):
    secure, value = SecureSum(), torch.tensor(numbers)
    sealed = secure.encode(Upload({"w": value}, torch.tensor(weight)))
    assert sealed.total["w"].dtype == sealed.weight.dtype == torch.int64
    exact = sealed.total["w"].double() * secure.step
    assert bool((exact.abs() <= value.double().abs()).all() and (exact * value >= 0).all())
    assert bool(((exact - value.double()).abs() < secure.step).all())
    opened = secure.decode(sealed)
    assert torch.allclose(opened.total["w"], value, rtol=1e-7, atol=secure.step)
    assert 0 <= weight - int(sealed.weight) * secure.weight_step < secure.weight_step
    assert opened.total["w"].dtype == opened.weight.dtype == torch.float32


@given(st.lists(inside, min_size=1, max_size=30), st.sampled_from([1e-3, 0.5, 1.0, 3.0, 1000.0]), st.integers(1, 10**6))
def test_a_norm_never_grows(numbers, clip, most):
    value = torch.tensor(numbers, dtype=torch.float64)
    value = (value * clip / value.norm().clamp(min=1.0)).float()
    secure = SecureSum(clip=clip, most=most)
    sealed = secure.encode(Upload({"w": value}, torch.tensor(1.0)))
    cut = sealed.total["w"].double() * secure.step
    assert float(cut.norm()) <= float(value.double().norm())
    assert int(sealed.weight) * secure.weight_step == 1.0


@pytest.mark.parametrize("most", [1, 2, 3, 1000, 1024, 65_536, 2**28])
@pytest.mark.parametrize("clip", [None, 0.3, 1.0, 2.0, 1e6])
def test_the_largest_sum_does_not_wrap(clip, most):
    """As words modulo 2^bits, without adding `most` vectors."""
    secure = SecureSum(clip=clip, most=most)
    below = np.nextafter(min(secure.largest, LIMIT), 0)
    heaviest = MAX_WEIGHT if clip is None else 1.0
    for sign in (1, -1):
        value = torch.tensor([sign * below, 0.0], dtype=torch.float64)
        sealed = secure.encode(Upload({"w": value}, torch.tensor(sign * heaviest, dtype=torch.float64)))
        count = [int(sealed.total["w"][0]) * most, int(sealed.weight) * most]
        assert max(abs(n) for n in count) < 2 ** (secure.bits - 1)
        kind = np.uint64 if secure.bits == 64 else np.uint32
        words = np.array([count[1] % 2**secure.bits, count[0] % 2**secure.bits, 0], kind)
        back = from_words(words, sealed)
        assert [int(back.total["w"][0]), int(back.weight)] == count
        assert np.array_equal(to_words(back, kind), words)
        opened = secure.decode(back)
        slack = most * (secure.step + below * 2**-24)  # what was cut off, and float32 of the answer
        assert abs(float(opened.total["w"][0]) - sign * below * most) <= slack
        assert float(opened.weight) == pytest.approx(sign * heaviest * most)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9))
def test_a_sum_modulo_two_to_the_32_opens_as_its_remainder(numbers):
    secure = SecureSum(clip=1.0, most=100)
    value = secure.decode(Upload({"w": torch.tensor(numbers)}, torch.tensor(0))).total["w"].double() / secure.step
    signed = [(n + 2**31) % 2**32 - 2**31 for n in numbers]
    assert value.tolist() == [float(np.float32(n)) for n in signed]


def test_one_and_many_are_sealed_alike_and_what_the_door_refuses_is_nothing():
    secure, sent = SecureSum(), list(uploads(range(5)).values())
    many = secure.encode(Upload({n: torch.stack([u.total[n] for u in sent]) for n in sent[0].total},
                              torch.stack([u.weight for u in sent])))  # fmt: skip
    for at, upload in enumerate(sent):
        one = secure.encode(upload)
        assert torch.equal(many.weight[at], one.weight)
        assert all(torch.equal(many.total[n][at], one.total[n]) for n in one.total)
    rubbish = Upload({"w": torch.tensor([math.nan, math.inf, -math.inf, 1e9, 1.0])}, torch.tensor(math.nan))
    sealed = secure.encode(rubbish)
    assert sealed.total["w"].tolist() == [0, 0, 0, 0, 2**32] and int(sealed.weight) == 0


def test_what_could_wrap_is_an_error():
    def of(number: float, weight: float = 1.0) -> Upload:
        return Upload({"w": torch.tensor([number])}, torch.tensor(weight))

    with pytest.raises(SettingError, match=r'"w" must be below 32768.*65,536 people.*got 40000'):
        SecureSum().encode(of(40_000.0))
    assert int(SecureSum(most=1000).encode(of(40_000.0)).total["w"]) == 40_000 * 2**32
    with pytest.raises(SettingError, match="Clip before the secure sum"):
        SecureSum(clip=1.0).encode(of(1.5))
    with pytest.raises(SettingError, match="at most 1, got 7"):
        SecureSum(clip=1.0).encode(of(0.5, 7.0))
    with pytest.raises(SettingError, match="at most 10 people, got 11"):
        SecureSum(most=10).recoverable(np.arange(11), np.arange(11), SEAT)


@pytest.mark.parametrize(
    "wrong",
    [{"group": 2}, {"threshold": 0.5}, {"threshold": 1.1}, {"clip": 0.0}, {"clip": math.nan}, {"most": 0},
     {"neighbours": 5}, {"neighbours": 2}],
)  # fmt: skip
def test_settings_without_sense_are_refused(wrong):
    with pytest.raises(SettingError, match=f"{next(iter(wrong))} of SecureSum"):
        SecureSum(**wrong)


# Bytes


@pytest.mark.parametrize("secure", [SecureSum(), SecureSum(group=10), SecureSum(neighbours=6)])
def test_overhead_is_what_was_really_sent(secure):
    asked = np.arange(10)
    (server,) = secure.sessions(uploads(asked, numbers=30), asked, SEAT)
    sent = sum(count for kind, count in server.bytes.items() if kind != "vectors")
    assert sent == 10 * secure.overhead_bytes(10)
    assert server.bytes["vectors"] == 10 * (30 + 4 + 1) * 8
    written = SecureSum(group=10, clip=1.0).message_layout({"w": torch.zeros(5, 2)})
    assert written["w"].dtype == torch.int32 and written["w"].shape == (5, 2)
    assert written["secure"].numel() == SecureSum(group=10).overhead_bytes(10)


# Through the engine


@pytest.mark.parametrize(
    "secure",
    [SecureSum(group=4), SecureSum(threshold=0.55), SecureSum(threshold=0.51, neighbours=12)],
    ids=["groups of 4", "the cohort", "the cohort on a ring"],
)
@pytest.mark.parametrize("name, settings", [("popularity", {}), ("fedavg", {"lr": 0.1})])
def test_loop_is_vmap(secure, name, settings):
    """Loop runs the protocol, vmap adds whole numbers. Counts of people are exact: the bytes are the same."""
    left = {}
    for backend in ("loop", "vmap"):
        method, model, federation = world(name, settings, "ranking")
        done = list(run(method, model, federation, rounds=3, dropout=0.3, wire=secure.stage(), backend=backend))
        left[backend] = done
    opened = 0
    for loop, vmap in zip(left["loop"], left["vmap"]):
        assert (loop.requested, loop.answered, loop.rejected) == (vmap.requested, vmap.answered, vmap.rejected)
        assert loop.requested == PEOPLE and loop.answered + loop.rejected["abandoned"] < PEOPLE
        opened += loop.answered
        for leaf, value in loop.state.shared.items():
            if name == "popularity":
                assert torch.equal(value, vmap.state.shared[leaf])
            else:
                assert torch.allclose(value, vmap.state.shared[leaf], atol=1e-5)
    assert opened > 0


def test_secure_is_plain_where_nobody_drops_out():
    left = []
    for wire in (None, Stage(secure_sum=SecureSum(group=5)), Stage(secure_sum=SecureSum())):
        method, model, federation = world("fedavg", {"lr": 0.1}, "ranking")
        *_, last = run(method, model, federation, rounds=2, wire=wire, backend="loop")
        left.append(last.state.shared)
    for sealed in left[1:]:
        assert all(torch.allclose(value, sealed[leaf], atol=1e-5) for leaf, value in left[0].items())
    assert all(torch.equal(value, left[2][leaf]) for leaf, value in left[1].items())  # groups change no sum
