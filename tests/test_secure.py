"""Secure sums: exact under drop-out, masked uploads look uniform, devices refuse wrong requests, backends agree."""

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

RARE = 1e-7  # the p-value below which a chi-square test rejects uniform bytes
CONTEXT = StageContext(bytes(32), 3, 30.0)


def uploads(people, numbers: int = 60, seed: int = 0, scale: float = 0.1) -> dict[int, Upload]:
    rng = np.random.default_rng(seed)

    def upload() -> Upload:
        table = torch.from_numpy(rng.normal(0, scale, (numbers // 3, 3)).astype(np.float32))
        bias = torch.from_numpy(rng.normal(0, scale, 4).astype(np.float32))
        return Upload({"item": table, "bias": bias}, torch.tensor(float(rng.integers(1, 50))))

    return {int(person): upload() for person in people}


def with_weight_1(sent: dict[int, Upload]) -> dict[int, Upload]:
    return {person: Upload(upload.total, torch.tensor(1.0)) for person, upload in sent.items()}


def plain_sum(secure: SecureSum, sent: dict[int, Upload]) -> Upload:
    """The sum of encoded uploads without masks, as the vmap backend computes it."""
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


# Exact sums


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
    """Of the people who drop out, half do so before sending; the others afterwards, so that their uploads count."""
    cohort = np.arange(100, 130)
    dropped = [
        person
        for group in secure.groups(cohort, CONTEXT)
        for person in group.people[1 :: round(1 / share) if share else 99]
    ]
    dropped = dropped[: round(share * 30)]
    unsent, silent = dropped[::2], dropped[1::2]
    sent = uploads(sorted(set(cohort.tolist()) - set(unsent)))
    sent = with_weight_1(sent) if secure.clip else sent
    total = secure.run_protocol(sent, cohort, CONTEXT, silent=silent)
    assert total is not None and len(dropped) == round(share * 30)
    assert same(total, plain_sum(secure, sent))
    for name in ("item", "bias"):
        plain = sum(upload.total[name].double() for upload in sent.values())
        rounding = 1e-7 * plain.abs()  # of float32
        assert bool(((total.total[name] - plain).abs() <= len(sent) * secure.step + rounding).all())
    assert float(total.weight) == sum(float(upload.weight) for upload in sent.values())  # integer weights are exact


def test_the_sum_leaves_out_people_who_drop_out_before_sending_only():
    secure, cohort = SecureSum(), np.arange(9)
    sent = uploads(cohort)
    kept = {person: sent[person] for person in range(6)}
    assert same(secure.run_protocol(kept, cohort, CONTEXT), plain_sum(secure, kept))
    assert same(secure.run_protocol(sent, cohort, CONTEXT, silent=[6, 7, 8]), plain_sum(secure, sent))


def test_too_many_drop_outs_abandon_the_group_and_reveal_nothing():
    secure, cohort = SecureSum(group=9), np.arange(18)
    first, second = secure.groups(cohort, CONTEXT)
    sent = uploads([*first.people[:5], *second.people])  # 5 of 9 are left where 6 are needed
    broken, whole = secure.sessions(sent, cohort, CONTEXT)
    assert broken.total is None and "5 of 9" in broken.failure and "6 are needed" in broken.failure
    assert not broken.revealed and broken.bytes["reveals"] == 0  # no shares were requested
    assert whole.total is not None and whole.failure is None
    second_group = {person: sent[person] for person in second.people}
    assert same(secure.run_protocol(sent, cohort, CONTEXT), plain_sum(secure, second_group))
    assert sorted(secure.recoverable(cohort, np.array(sorted(sent)), CONTEXT)) == sorted(second.people)
    lost = {person: sent[person] for person in first.people[:5]}
    assert secure.run_protocol(lost, cohort, CONTEXT) is None
    late = secure.sessions(sent, cohort, CONTEXT, silent=second.people[:4])[1]  # too many after they sent
    assert late.total is None and "5 shares" in late.failure and "6 are needed" in late.failure


def test_a_wrong_share_abandons_the_sum():
    group = Group((0, 1, 2, 3), 3, 3, 3)
    devices, server = exchange_keys(group)
    for person in (0, 1, 2):
        server.receive_vector(person, devices[person].mask(np.zeros(4, np.uint64), server.ciphertexts_for(person)))
    alive = server.alive()
    for person in alive:
        shares = devices[person].reveal(alive)
        server.receive_reveal(person, shares | ({3: bytes(16)} if person == 1 else {}))
    assert server.unmask() is None and "person 3 do not fit" in server.failure


# Groups


def test_groups_stay_the_same_for_a_run_and_are_never_too_small():
    cohort = np.arange(7, 107)
    for many, size in ((100, 10), (99, 10), (19, 10), (10, 10), (50, 3)):
        groups = SecureSum(group=size).groups(cohort[:many], CONTEXT)
        assert sorted(p for g in groups for p in g.people) == cohort[:many].tolist()
        assert len(groups) == many // size and all(len(g.people) >= size for g in groups)
    first = [g.people for g in SecureSum(group=10).groups(cohort, CONTEXT)]
    assert first == [g.people for g in SecureSum(group=10).groups(cohort, CONTEXT)]
    assert first == [g.people for g in SecureSum(group=10).groups(cohort, CONTEXT._replace(key=b"1" * 32, round=9))]
    other = CONTEXT._replace(run_key=b"1" * 32)
    assert first != [g.people for g in SecureSum(group=10).groups(cohort, other)]


@pytest.mark.parametrize("secure, people", [(SecureSum(), 2), (SecureSum(group=10), 9), (SecureSum(), 0)])
def test_a_cohort_that_is_too_small_reveals_nothing(secure, people):
    cohort = np.arange(people)
    assert len(secure.recoverable(cohort, cohort, CONTEXT)) == 0
    assert secure.run_protocol(uploads(cohort), cohort, CONTEXT) is None


def test_a_sum_of_fewer_than_three_is_never_revealed():
    secure = SecureSum(threshold=0.51)
    cohort = np.arange(3)
    assert len(secure.recoverable(cohort, cohort[:2], CONTEXT)) == 0
    assert secure.run_protocol(uploads(cohort[:2]), cohort, CONTEXT) is None
    assert secure.recoverable(cohort, cohort, CONTEXT).tolist() == [0, 1, 2]


@given(st.integers(3, 60), st.data())
@effort(max_examples=60)
def test_recoverable_names_the_people_whose_sum_can_be_revealed(people, data):
    cohort = np.arange(people)
    answering = np.array(sorted(data.draw(st.sets(st.sampled_from(range(people))))), np.int64)
    secure = SecureSum(data.draw(st.sampled_from([None, 3, 10])), neighbours=data.draw(st.sampled_from([None, 6])))
    recoverable = set(secure.recoverable(cohort, answering, CONTEXT).tolist())
    for group in secure.groups(cohort, CONTEXT):
        alive = set(group.people) & set(answering.tolist())
        enough = len(alive) >= max(3, math.ceil(2 / 3 * len(group.people) - 1e-9), len(group.people) // 2 + 1)
        if not group.complete:
            enough = enough and all(
                len(alive & set(group.holders(person))) >= group.threshold for person in group.people
            )
        assert set(group.people) & recoverable == (alive if enough else set())
    assert recoverable <= set(answering.tolist())


def connected(group: Group, alive: set[int]) -> bool:
    reached, border = set(), {min(alive)}
    while border:
        reached |= border
        border = {n for person in border for n in group.neighbours(person) if n in alive} - reached
    return reached == alive


def test_the_survivors_of_a_recoverable_ring_are_connected():
    """Two parts without masks between them would be revealed as two sums.

    All sets of survivors of a ring of 12 are tried. With a threshold lower by one, some recoverable sets are not
    connected.
    """
    ring = ring_of(12, 4)
    looser = Group(ring.people, 4, ring.threshold - 1, 3)
    sets = [{person for person in range(12) if bits >> person & 1} for bits in range(1, 2**12)]
    recoverable = [alive for alive in sets if not ring.shortfall(alive)]
    assert len(recoverable) > 20 and all(connected(ring, alive) for alive in recoverable)
    assert not all(connected(looser, alive) for alive in sets if not looser.shortfall(alive))


def test_the_degree_of_a_ring_is_the_smallest_that_is_safe():
    widths = {n: degree(n) for n in (300, 943, 6040, 100_000)}
    assert widths == {300: 100, 943: 112, 6040: 134, 100_000: 164}  # grows like the logarithm
    for people, width in widths.items():
        too_few = binom.cdf(share_threshold(width) - 1, width + 1, 1 - LOST)
        assert people * too_few <= RISK < people * binom.cdf(share_threshold(width - 2) - 1, width - 1, 1 - LOST)
    group = SecureSum().groups(np.arange(943), CONTEXT)[0]
    assert all(
        len(group.neighbours(person)) == 112 and person not in group.neighbours(person) for person in group.people
    )
    assert all(person in group.neighbours(other) for person in group.people[:20] for other in group.neighbours(person))


# Messages that the server receives


def exchange_keys(group: Group) -> tuple[dict[int, Device], Server]:
    """Devices and a server that have exchanged keys and shares."""
    server, devices = Server(group), {person: Device(person, group) for person in group.people}
    for person, device in devices.items():
        server.receive_keys(person, device.advertise())
    for person, device in devices.items():
        server.receive_shares(person, device.share(server.keys_for(person)))
    return devices, server


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("zeros", [True, False])
def test_a_masked_upload_looks_uniform(kind, zeros):
    group = Group((0, 1, 2, 3, 4), 4, 4, 4)
    rng = np.random.default_rng(0)
    plain = {p: np.zeros(20_000, kind) if zeros else rng.integers(0, 9, 20_000).astype(kind) for p in group.people}
    first, second = run_session(group, plain), run_session(group, plain)
    assert np.array_equal(first.total, sum(plain.values())) and np.array_equal(first.total, second.total)
    for person in group.people:
        assert not looks_uniform(plain[person])  # the check can fail
        assert looks_uniform(first.masked[person])
        assert looks_uniform(first.masked[person] - second.masked[person])  # masks are new every time
        assert (first.masked[person] == second.masked[person]).mean() < 0.01
    silent = run_session(group, plain, silent=[2])  # also if this person drops out before the end
    assert looks_uniform(silent.masked[2]) and np.array_equal(silent.total, first.total)


@pytest.mark.parametrize("own_masks", [True, False], ids=["as received", "own masks known"])
def test_the_sum_over_a_part_of_a_group_looks_uniform(own_masks):
    """Also if the server has removed the own masks, as it does in the end: then only the sum of all is revealed."""
    group = Group((3, 8, 1, 6, 2), 4, 4, 4)
    devices, server = exchange_keys(group)
    plain = {person: np.full(8_000, person, np.uint32) for person in group.people}
    received = {p: devices[p].mask(plain[p], server.ciphertexts_for(p)) for p in group.people}
    if not own_masks:
        received = {
            p: received[p] - stream(expand(devices[p]._own_seed, "own mask"), received[p]) for p in group.people
        }
    for size in range(1, 5):
        for part in combinations(group.people, size):
            assert looks_uniform(np.sum([received[p] for p in part], axis=0, dtype=np.uint32)), part
    total = np.sum([received[p] for p in group.people], axis=0, dtype=np.uint32)
    assert looks_uniform(total) if own_masks else np.array_equal(total, np.full(8_000, 20, np.uint32))


def test_ciphertexts_do_not_contain_secrets():
    devices, server = exchange_keys(Group(tuple(range(6)), 5, 4, 4))
    joined = b"".join(ciphertext for mine in server.ciphertexts.values() for ciphertext in mine.values())
    for device in devices.values():
        for secret in (device._own_seed, device._key_seed, *(pair[:16] for pair in device._shares.values())):
            assert secret not in joined


# Requests that a device refuses


def ready(people: int = 6) -> tuple[dict[int, Device], Server]:
    """Devices that have sent their masked vectors."""
    devices, server = exchange_keys(Group(tuple(range(people)), people - 1, 4, 4))
    for person, device in devices.items():
        server.receive_vector(person, device.mask(np.zeros(8, np.uint32), server.ciphertexts_for(person)))
    return devices, server


def test_a_device_never_reveals_both_shares():
    devices, server = ready()
    alive = [0, 1, 2, 3, 4]
    shares = devices[0].reveal(alive)
    assert devices[0].reveal(alive) == shares  # the same request reveals nothing new
    for other in ([0, 1, 2, 3], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5]):
        with pytest.raises(ProtocolError, match="both shares of person"):
            devices[0].reveal(other)
    for owner, share in shares.items():
        own, key = devices[0]._shares[owner][:16], devices[0]._shares[owner][16:]
        assert share == (own if owner in alive else key) and own != key


def test_a_device_reveals_nothing_if_too_few_are_left_or_it_is_not_among_them():
    devices, _ = ready()
    with pytest.raises(ProtocolError, match="3.*4 are needed"):
        devices[0].reveal([0, 1, 2])
    with pytest.raises(ProtocolError, match="reveals nothing"):
        devices[0].reveal([1, 2, 3, 4, 5])
    assert devices[0]._revealed is None
    fresh, _ = exchange_keys(Group((0, 1, 2, 3), 3, 3, 3))
    with pytest.raises(ProtocolError, match="reveals nothing"):  # it has not sent its vector
        fresh[0].reveal([0, 1, 2, 3])


def test_a_device_sends_and_shares_once():
    devices, server = ready()
    with pytest.raises(ProtocolError, match="one vector"):
        devices[0].mask(np.zeros(8, np.uint32), server.ciphertexts_for(0))
    with pytest.raises(ProtocolError, match="shared its secrets already"):
        devices[0].share(server.keys_for(0))
    device = Device(0, Group((0, 1, 2, 3), 3, 3, 3))
    with pytest.raises(ProtocolError, match="keys of person 3 are missing"):
        device.share({1: bytes(2 * KEY), 2: bytes(2 * KEY)})


@pytest.mark.parametrize("where", ["nonce", "text", "tag", "short", "empty", "of another", "to another"])
def test_a_changed_ciphertext_is_refused(where):
    devices, server = exchange_keys(Group((0, 1, 2, 3), 3, 3, 3))
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


def test_a_weak_public_key_is_refused():
    group = Group((0, 1, 2), 2, 3, 3)
    with pytest.raises(ProtocolError, match="public key"):
        Device(0, group).share({1: bytes(2 * KEY), 2: bytes(2 * KEY)})  # a point of low order


def test_a_device_without_enough_ciphertexts_sends_nothing():
    devices, server = exchange_keys(Group(tuple(range(6)), 5, 4, 4))
    with pytest.raises(ProtocolError, match="at least 4 people, got 3"):
        devices[0].mask(np.zeros(8, np.uint32), {person: server.ciphertexts_for(0)[person] for person in (1, 2)})


# Encoding as integers

finite = st.floats(-1e4, 1e4, width=32)
inside = st.floats(-1, 1, width=32)


@given(st.lists(finite, min_size=1, max_size=20), st.floats(1 / 1024, 1e7, width=32))
def test_numbers_are_truncated_towards_zero_within_a_step(numbers, weight):
    secure, value = SecureSum(), torch.tensor(numbers)
    encoded = secure.encode(Upload({"w": value}, torch.tensor(weight)))
    assert encoded.total["w"].dtype == encoded.weight.dtype == torch.int64
    exact = encoded.total["w"].double() * secure.step
    assert bool((exact.abs() <= value.double().abs()).all() and (exact * value >= 0).all())
    assert bool(((exact - value.double()).abs() < secure.step).all())
    decoded = secure.decode(encoded)
    assert torch.allclose(decoded.total["w"], value, rtol=1e-7, atol=secure.step)
    assert 0 <= weight - int(encoded.weight) * secure.weight_step < secure.weight_step
    assert decoded.total["w"].dtype == decoded.weight.dtype == torch.float32


@given(st.lists(inside, min_size=1, max_size=30), st.sampled_from([1e-3, 0.5, 1.0, 3.0, 1000.0]), st.integers(1, 10**6))
def test_encoding_never_increases_a_norm(numbers, clip, most):
    value = torch.tensor(numbers, dtype=torch.float64)
    value = (value * clip / value.norm().clamp(min=1.0)).float()
    secure = SecureSum(clip=clip, most=most)
    encoded = secure.encode(Upload({"w": value}, torch.tensor(1.0)))
    truncated = encoded.total["w"].double() * secure.step
    assert float(truncated.norm()) <= float(value.double().norm())
    assert int(encoded.weight) * secure.weight_step == 1.0


@pytest.mark.parametrize("most", [1, 2, 3, 1000, 1024, 65_536, 2**28])
@pytest.mark.parametrize("clip", [None, 0.3, 1.0, 2.0, 1e6])
def test_the_largest_sum_does_not_wrap(clip, most):
    """Computed on words modulo 2^bits, without adding `most` vectors."""
    secure = SecureSum(clip=clip, most=most)
    below = np.nextafter(min(secure.largest, LIMIT), 0)
    heaviest = MAX_WEIGHT if clip is None else 1.0
    for sign in (1, -1):
        value = torch.tensor([sign * below, 0.0], dtype=torch.float64)
        encoded = secure.encode(Upload({"w": value}, torch.tensor(sign * heaviest, dtype=torch.float64)))
        count = [int(encoded.total["w"][0]) * most, int(encoded.weight) * most]
        assert max(abs(n) for n in count) < 2 ** (secure.bits - 1)
        kind = np.uint64 if secure.bits == 64 else np.uint32
        words = np.array([count[1] % 2**secure.bits, count[0] % 2**secure.bits, 0], kind)
        total = from_words(words, encoded)
        assert [int(total.total["w"][0]), int(total.weight)] == count
        assert np.array_equal(to_words(total, kind), words)
        decoded = secure.decode(total)
        slack = most * (secure.step + below * 2**-24)  # truncation, and rounding to float32
        assert abs(float(decoded.total["w"][0]) - sign * below * most) <= slack
        assert float(decoded.weight) == pytest.approx(sign * heaviest * most)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9))
def test_a_sum_modulo_two_to_the_32_is_decoded_as_its_signed_remainder(numbers):
    secure = SecureSum(clip=1.0, most=100)
    value = secure.decode(Upload({"w": torch.tensor(numbers)}, torch.tensor(0))).total["w"].double() / secure.step
    signed = [(n + 2**31) % 2**32 - 2**31 for n in numbers]
    assert value.tolist() == [float(np.float32(n)) for n in signed]


def test_stacked_uploads_are_encoded_like_single_ones_and_invalid_numbers_become_zero():
    secure, sent = SecureSum(), list(uploads(range(5)).values())
    stacked = secure.encode(Upload({n: torch.stack([u.total[n] for u in sent]) for n in sent[0].total},
                              torch.stack([u.weight for u in sent])))  # fmt: skip
    for at, upload in enumerate(sent):
        single = secure.encode(upload)
        assert torch.equal(stacked.weight[at], single.weight)
        assert all(torch.equal(stacked.total[n][at], single.total[n]) for n in single.total)
    invalid = Upload({"w": torch.tensor([math.nan, math.inf, -math.inf, 1e9, 1.0])}, torch.tensor(math.nan))
    encoded = secure.encode(invalid)
    assert encoded.total["w"].tolist() == [0, 0, 0, 0, 2**32] and int(encoded.weight) == 0


def test_numbers_that_could_wrap_are_refused():
    def upload(number: float, weight: float = 1.0) -> Upload:
        return Upload({"w": torch.tensor([number])}, torch.tensor(weight))

    with pytest.raises(SettingError, match='"w" must be below 32768.*65,536.*40000'):
        SecureSum().encode(upload(40_000.0))
    assert int(SecureSum(most=1000).encode(upload(40_000.0)).total["w"]) == 40_000 * 2**32
    with pytest.raises(SettingError, match="Clip before the secure sum"):
        SecureSum(clip=1.0).encode(upload(1.5))
    with pytest.raises(SettingError, match="at most 1, got 7"):
        SecureSum(clip=1.0).encode(upload(0.5, 7.0))
    with pytest.raises(SettingError, match="at most 10 people, got 11"):
        SecureSum(most=10).recoverable(np.arange(11), np.arange(11), CONTEXT)


@pytest.mark.parametrize(
    "wrong",
    [{"group": 2}, {"threshold": 0.5}, {"threshold": 1.1}, {"clip": 0.0}, {"clip": math.nan}, {"most": 0},
     {"neighbours": 5}, {"neighbours": 2}],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=f"{next(iter(wrong))} of SecureSum"):
        SecureSum(**wrong)


# Message sizes


@pytest.mark.parametrize("secure", [SecureSum(), SecureSum(group=10), SecureSum(neighbours=6)])
def test_the_stated_overhead_equals_the_bytes_sent(secure):
    cohort = np.arange(10)
    (server,) = secure.sessions(uploads(cohort, numbers=30), cohort, CONTEXT)
    sent = sum(count for kind, count in server.bytes.items() if kind != "vectors")
    assert sent == 10 * secure.overhead_bytes(10)
    assert server.bytes["vectors"] == 10 * (30 + 4 + 1) * 8
    layout = SecureSum(group=10, clip=1.0).message_layout({"w": torch.zeros(5, 2)})
    assert layout["w"].dtype == torch.int32 and layout["w"].shape == (5, 2)
    assert layout["secure"].numel() == SecureSum(group=10).overhead_bytes(10)


# In the engine


@pytest.mark.parametrize(
    "secure",
    [SecureSum(group=4), SecureSum(threshold=0.55), SecureSum(threshold=0.51, neighbours=12)],
    ids=["groups of 4", "the cohort", "the cohort on a ring"],
)
@pytest.mark.parametrize("name, settings", [("popularity", {}), ("fedavg", {"lr": 0.1})])
def test_loop_and_vmap_train_the_same_state(secure, name, settings):
    """The loop runs the protocol and vmap adds integers. Sums of counts are exact, so their bytes are equal."""
    rounds = [
        run(*world(name, settings, "ranking"), rounds=3, dropout=0.3, wire=secure.stage(), backend=backend)
        for backend in ("loop", "vmap")
    ]
    answered = 0
    for loop, vmap in zip(*rounds, strict=True):
        assert (loop.requested, loop.answered, loop.rejected) == (vmap.requested, vmap.answered, vmap.rejected)
        assert loop.requested == PEOPLE and loop.answered + loop.rejected["abandoned"] < PEOPLE
        answered += loop.answered
        for leaf, value in loop.state.shared.items():
            if name == "popularity":
                assert torch.equal(value, vmap.state.shared[leaf])
            else:
                assert torch.allclose(value, vmap.state.shared[leaf], atol=1e-5)
    assert answered > 0


def test_without_drop_out_a_secure_sum_equals_the_plain_sum():
    states = []
    for wire in (None, Stage(secure_sum=SecureSum(group=5)), Stage(secure_sum=SecureSum())):
        *_, last = run(*world("fedavg", {"lr": 0.1}, "ranking"), rounds=2, wire=wire, backend="loop")
        states.append(last.state.shared)
    plain, in_groups, in_one_group = states
    for secure in (in_groups, in_one_group):
        assert all(torch.allclose(value, secure[leaf], atol=1e-5) for leaf, value in plain.items())
    assert all(torch.equal(value, in_one_group[leaf]) for leaf, value in in_groups.items())
