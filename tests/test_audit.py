"""The audit: attacks with known answers, exact figures, and a page that is complete and escapes all texts."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
import torch

from fedtaste.attacks.list_recovery import Guess, Knowledge, decay, guess_items, guess_ratings
from fedtaste.attacks.measure import RoundUploads, attack_once, measure_baselines
from fedtaste.attacks.result import SumFigures
from fedtaste.attacks.scoring import RankedGuesses, f1_of_best, popularity_neighbours, score_ranked
from fedtaste.attacks.uploads import Step, holdings_of, make_targets, produce_uploads, shuffle
from fedtaste.audit.page import draw, headline, render, verdict, write_audit
from fedtaste.audit.result import AuditResult
from fedtaste.audit.run import AuditScope, audit, audit_saved, stages_label, wire_prefixes
from fedtaste.audit.saved import read_uploads
from fedtaste.core import Download, Stage, StageContext, Upload
from fedtaste.data.sources import load
from fedtaste.engine.backends import Call, collect
from fedtaste.engine.run import begin, run
from fedtaste.errors import DataError, RunError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.federation import of_histories
from fedtaste.wire.messages import Head, encode
from fedtaste.wire.stages import clip
from support.command import fedtaste

SMALL = "synthetic:60x80x900"
SPARSE = "synthetic:60x300x900"  # nobody has most of the items
MAIN = {"f1", "auc", "popularity_f1", "popularity_auc", "random_f1", "people", "intervals", "attack", "rows", "epsilon",
        "report", "sums"}  # fmt: skip


def audit_inputs(data: str = SMALL, **values):
    """(settings, task, titles), as `audit` takes them."""
    settings = Settings(data=data, **values)
    loaded = load(data)
    return settings, make_task(settings, loaded), getattr(loaded, "titles", ())


@cache
def audit_result(method: str, wire: str = "", task: str = "ranking", people: int = 40, rounds: int | None = None, **_):
    scope = AuditScope(rounds=rounds, people=people, canaries=0)
    return audit(*audit_inputs(method=method, wire=wire, task=task, set={}), scope)


def row(result: AuditResult, stages: str, size: int) -> SumFigures:
    return next(r for r in result.rows if (r.stages, r.in_sum) == (stages, size))


# Results of attacks


@pytest.mark.parametrize("method", ["fedmf", "fedsgd", "pfedrec", "fedncf", "ditto"])
def test_the_sign_of_a_factor_models_change_reveals_the_whole_list(method):
    result = audit_result(method)
    assert result.f1 == 1.0 and result.auc == 1.0
    assert "sign" in result.attack
    assert result.popularity_f1 < 0.7, "popularity alone must not suffice"


@pytest.mark.parametrize("method,attack", [("popularity", "read count"), ("fedals", "read sums"), ("fedtrail", "read")])
def test_counts_in_an_upload_reveal_the_list(method, attack):
    result = audit_result(method)
    assert result.f1 == result.auc == result.matched_auc == 1.0
    assert result.attack.startswith(attack)


def test_fedrecon_reveals_only_the_query_half_of_a_list():
    """Only the query half changes the shared parameters: precision is 1 and recall about one half."""
    assert 0.6 < audit_result("fedrecon").f1 < 0.72


def fedrap_world():
    """(plan, federation, initial state) of FedRAP as released, on sparse data."""
    settings, task, _ = audit_inputs(SPARSE, method="fedrap", set={"released": "true"})
    prepared = plan(settings, task.facts)
    federation = task.federation("final", prepared.method, prepared.sampling, None)
    state = begin(prepared.method, prepared.model, federation, 0)
    return prepared, federation, state


def test_the_table_of_fedrap_reveals_the_list_although_every_row_shrinks():
    """The released code of the paper sends the whole table: an attack has to estimate the decay first."""
    prepared, federation, state = fedrap_world()
    truth = holdings_of(federation, "ranking", 0)
    people = shuffle(federation.members, 0)[:30]
    about = make_targets(truth, people, federation.catalogue, state.shared)
    scores, table = [], state.shared["item"]
    for index, (_, upload) in enumerate(produce_uploads(prepared.method, federation, state, people)):
        sent_table = upload.total["decay"] * table + upload.total["item"]
        assert (sent_table != 0).all(), "no row stays"
        shrunk = decay(sent_table.double().numpy(), table.double().numpy())
        assert shrunk == pytest.approx(float(upload.total["decay"]), abs=1e-5)
        guesses = guess_items({"item": sent_table.numpy()}, about.knowledge)
        ranked = RankedGuesses.of(guesses)
        scores.append(score_ranked(ranked, about.lists[index], about.neighbours[index])[:, 0])
    by_name = dict(zip(guesses, np.mean(scores, 0)))
    assert max(value for name, value in by_name.items() if name.startswith("decay")) >= 0.9
    assert by_name["rows of item"] < 0.9, "without removing the decay the rows reveal little"


def test_the_upload_of_fedrap_reveals_the_list():
    assert audit(*audit_inputs(SPARSE, method="fedrap"), AuditScope(people=30, canaries=0)).f1 >= 0.9


def test_a_method_without_uploads_reveals_nothing():
    result = audit_result("local")
    assert not result.sends and result.attack == "popularity"
    assert (result.f1, result.auc) == (result.popularity_f1, result.popularity_auc)
    assert "Nothing is sent" in headline(result)


def test_a_centralised_method_reveals_everything():
    sparse = audit_inputs("synthetic:30x200x300", method="centralised")  # nobody has most of the items
    result = audit(*sparse, AuditScope(people=20, canaries=0))
    assert result.f1 == 1.0 and any("handed over" in note for note in result.notes)


def test_the_sum_of_all_people_reveals_only_popularity():
    settings, task, titles = audit_inputs(method="popularity")
    prepared = plan(settings, task.facts)
    federation = task.federation("final", prepared.method, prepared.sampling, None)
    everybody = shuffle(federation.members, 0)
    about = make_targets(holdings_of(federation, "ranking", 0), everybody, federation.catalogue, {})
    state = begin(prepared.method, prepared.model, federation, 0)
    step = Step("all", Stage(), len(everybody), prepared.method)
    uploads = produce_uploads(prepared.method, federation, state, everybody)
    (measured,) = attack_once([step], RoundUploads(uploads, len(everybody)), about)
    last = measured.attacks[-1].figures()
    assert last.in_sum == len(everybody)
    assert last.attacks["read count"] == pytest.approx(measure_baselines(about).popularity_f1, abs=1e-6)


def test_larger_sums_reveal_less():
    result = audit_result("fedmf")
    f1 = [result.sums[size].f1 for size in ("1", "2", "10")]
    assert f1[0] > f1[1] > f1[2]


def test_very_large_noise_leaves_random_guesses():
    result = audit_result("fedmf", "clip=1.0,local=1000.0")
    single = row(result, "clip 1 + local 1e+03", 1)
    assert abs(single.matched_auc - 0.5) < 0.06
    assert single.attacks["sign of item"] < result.popularity_f1
    assert row(result, "clip 1", 1).f1 == 1.0, "clipping alone hides nothing"


def test_noise_added_by_the_server_does_not_hide_single_uploads_from_it():
    result = audit_result("fedmf", "clip=1.0,noise=1000.0")
    assert row(result, "clip 1 + noise 1e+03", 1).f1 == 1.0
    assert row(result, "clip 1 + noise 1e+03", 2).f1 < row(result, "clip 1", 2).f1
    assert result.in_sum == 1 and result.f1 == 1.0, "the server sees single uploads"


def test_with_secure_sums_the_server_sees_only_sums():
    result = audit_result("fedmf", "clip=1.0,noise=1000.0,secure=10")
    visible = {r.in_sum: r.seen for r in result.rows if "secure" in r.stages}
    assert visible == {1: False, 2: False, 5: False, 10: True}
    assert result.in_sum == 10 and result.epsilon > 0
    assert result.upload_f1 < row(result, "clip 1", 10).upload_f1, "no sum is opened without the noise"
    assert any("Devices add the noise" in note for note in result.notes)
    server_noise = audit_result("fedmf", "clip=1.0,noise=1000.0")
    assert any("hides nobody from the server" in note for note in server_noise.notes)


def test_secure_without_groups_sums_the_whole_cohort():
    result = audit_result("fedmf", "clip=1.0,secure")
    assert result.in_sum == max(r.in_sum for r in result.rows) > 50
    assert result.epsilon is None


def test_ratings_are_recovered_better_than_by_item_means():
    assert audit_result("popularity", task="ratings").ratings.rmse == 0.0
    for method in ("fedals", "fedmf", "fedrecon"):
        result = audit_result(method, task="ratings")
        assert result.ratings.rmse < result.item_mean_rmse, method
    assert audit_result("fedals", "clip=1.0", task="ratings").ratings == audit_result("fedals", task="ratings").ratings
    assert audit_result("local", task="ratings").ratings is None


def test_stars_of_fedals_are_exact_where_the_scale_determines_them():
    """The attack knows ratings up to a constant; stars are whole numbers from 1 to 5, and both ends occur."""
    stars = np.array([1.0, 3.0, 5.0, 4.0])
    sums = np.zeros((6, 6))  # two factors: u u' 3, u 2, and the count
    sums[:4, -2], sums[:4, -1] = stars - 2.3, 1.0
    known = Knowledge(6, np.ones(6), {}, np.full(6, 3.4), 1.0, (1.0, 5.0), 1.0)
    guess = guess_ratings({"sums": sums}, known)
    assert guess is not None and guess[:4] == pytest.approx(stars) and np.isnan(guess[4:]).all()


# Uploads


@pytest.mark.parametrize("method", ["fedmf", "fedrap", "fedtrail", "fedals"])
def test_attacked_uploads_add_up_to_the_sum_of_the_engine(method):
    """The attack uses the uploads of a run, after every stage and in sum."""
    settings, task, _ = audit_inputs(method=method)
    prepared = plan(settings, task.facts)
    federation = task.federation("final", prepared.method, prepared.sampling, None)
    step = Step("", clip(1.0, prepared.method.privacy.curve_only), 1, prepared.method)
    state = begin(step.method, prepared.model, federation, 0)
    for round_result in run(
        step.method, prepared.model, federation, rounds=method == "fedmf", wire=step.wire, state=state
    ):
        state = round_result.state
    people = federation.members[:20]
    context = StageContext(bytes(32), state.round, 20.0)
    total = None
    for _, upload in produce_uploads(prepared.method, federation, state, people):
        upload = step.wire.client(upload, context)
        total = upload if total is None else total + upload
    call = Call(
        Download(state.shared, torch.tensor(float(state.round))), people,
        federation.examples(people, state.round, prepared.method.examples), context, step.wire,
    )  # fmt: skip
    expected = collect("loop", prepared.method, call, state.private).upload
    assert total.total.keys() == expected.total.keys()
    for name, value in expected.total.items():
        torch.testing.assert_close(total.total[name], value, rtol=1e-4, atol=1e-5)


def test_wire_prefixes_include_the_noise_solved_for_epsilon():
    settings, task, _ = audit_inputs(method="fedmf", wire="clip=1.0,secure=10", epsilon=3.0)
    texts = wire_prefixes(settings, plan(settings, task.facts))
    assert [re.sub(r"noise=[\d.]+", "noise=z", text) for text in texts] == [
        "", "clip=1.0", "clip=1.0,noise=z", "clip=1.0,noise=z,secure=10.0",
    ]  # fmt: skip
    assert stages_label(texts[-1]).endswith("+ secure 10")
    bare = settings.model_copy(update={"wire": "", "epsilon": None})
    assert wire_prefixes(bare, plan(audit_inputs(method="fedmf")[0], task.facts)) == [""]


def test_later_rounds_and_sparsified_uploads_are_audited():
    result = audit(*audit_inputs(method="fedmf", wire="sparsify=0.2"), AuditScope(rounds=3, people=20, canaries=0))
    assert [r.stages for r in result.rows if r.in_sum == 1] == ["no stages", "sparsify 0.2"]
    assert (result.rounds, result.planned_rounds) == (3, 60) and row(result, "no stages", 1).f1 > 0.9
    assert result.f1 > result.popularity_f1, "the choice of the numbers that are sent reveals items"


def test_an_audit_is_repeatable_and_another_seed_samples_other_people():
    first = audit(*audit_inputs(method="fedmf", wire="clip=1.0,noise=1000.0"), AuditScope(people=20, canaries=0))
    second = audit(*audit_inputs(method="fedmf", wire="clip=1.0,noise=1000.0"), AuditScope(people=20, canaries=0))
    assert first.rows == second.rows
    members = np.arange(60)
    assert not np.array_equal(shuffle(members, 0), shuffle(members, 1))
    assert np.array_equal(np.sort(shuffle(members, 0)), members)


# Figures


def test_f1_and_auc_of_guesses_equal_known_values_also_with_ties():
    popularity = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    truth = np.array([1, 3])
    near = popularity_neighbours(truth, popularity)
    assert near.tolist() == [[3, 2, 4], [1, 0, 2]]
    guesses = {
        "right": Guess(np.array([0.0, 9, 0, 8, 0])),
        "tied": Guess(np.array([0.0, 9, 1, 1, 0])),
        "list": Guess(np.zeros(5), np.array([True, True, False, False, False])),
        "popularity": Guess(popularity),
    }
    values = dict(zip(guesses, score_ranked(RankedGuesses.of(guesses), truth, near).tolist()))
    assert values["right"] == [1.0, 1.0, 1.0]
    assert values["tied"] == pytest.approx([0.75, 5.5 / 6, 0.875])  # the second place is a fair draw of two
    assert values["list"] == pytest.approx([0.5, 0.5, 0.5])
    assert values["popularity"] == pytest.approx([0.5, 3 / 6, 0.5])
    assert f1_of_best(RankedGuesses.of({"all alike": Guess(np.zeros(5))}), truth) == pytest.approx([2 / 5])


def test_an_attack_is_selected_on_the_other_half_of_people():
    """Two attacks are perfect on one half of the people each. Selected on the other half, both fail."""
    about = make_targets(holdings_of(of_histories(_histories(), 6), "ranking", 0), np.arange(4), 6, {})
    uploads = ((n, Upload({"count": torch.zeros(6)}, torch.ones(()))) for n in range(4))
    (measured,) = attack_once([Step("x")], RoundUploads(uploads, 4), about)
    attack = measured.attacks[0]
    attack.names, attack.places = ["early", "late"], [0, 1, 2, 3]
    attack.values = [np.array([[1.0, 1, 1], [0, 0, 0]])] * 2 + [np.array([[0, 0, 0], [1.0, 1, 1]])] * 2
    figures, names = attack.best_by_other_half(0)
    assert figures.tolist() == [0, 0, 0, 0] and names == ["late", "late", "early", "early"]


def _histories():
    from fedtaste.data.interactions import Histories

    return Histories(np.arange(0, 10, 2), np.array([0, 1, 1, 2, 2, 3, 3, 4], np.int32), np.ones(8, np.float32))


def test_f1_of_random_and_popularity_guesses_equals_known_values():
    about = make_targets(holdings_of(of_histories(_histories(), 6), "ranking", 0), np.arange(4), 6, {})
    baselines = measure_baselines(about)
    assert baselines.random_f1 == pytest.approx(2 / 6, abs=1e-6)
    # items 1, 2, 3 have two people each: a fair draw of two of the three
    assert baselines.popularity_f1 == pytest.approx(np.mean([1 / 3, 2 / 3, 2 / 3, 1 / 3]), abs=1e-6)


# Saved uploads


def test_saved_uploads_give_the_same_figures(tmp_path):
    for method, wire in (("fedrap", ""), ("fedmf", "clip=1.0"), ("popularity", "")):
        folder = tmp_path / method
        live = audit(*audit_inputs(method=method, wire=wire), AuditScope(people=30, canaries=0, save=folder))
        saved = audit_saved(read_uploads(folder))
        assert [r.model_copy(update={"stages": ""}) for r in saved.rows] == [
            r.model_copy(update={"stages": ""}) for r in live.rows if r.stages == live.stages
        ]
        for name in ("f1", "auc", "popularity_f1", "random_f1", "people", "intervals", "attack"):
            assert getattr(saved, name) == getattr(live, name), name
        titles = [item.title for item in saved.example["as saved"].guessed]
        assert titles == [item.title for item in live.example[live.stages].guessed]


def test_an_upload_of_another_program_is_audited(tmp_path):
    """There is no download and no description of the data, and names are no numbers."""
    (tmp_path / "truth.csv").write_text("user,item\nann,0\nann,2\nbob,1\nbob,3\n")
    count = torch.tensor([1.0, 0, 1, 0, 0])
    (tmp_path / "ann.safetensors").write_bytes(encode(Upload({"seen": count}, torch.ones(())), Head(1, 0, 77)))
    result = audit_saved(read_uploads(tmp_path / "ann.safetensors"))
    assert (result.f1, result.people, result.items) == (1.0, 1, 5)


def test_invalid_saved_uploads_are_refused(tmp_path):
    def refused(match: str, path=tmp_path) -> None:
        with pytest.raises(DataError, match=match):
            read_uploads(path)

    truth, other = tmp_path / "truth.csv", tmp_path / "more.safetensors"
    upload = Upload({"seen": torch.tensor([1.0, 0, 1])}, torch.ones(()))
    refused("does not exist", tmp_path / "nowhere")
    refused("holds no upload")
    (tmp_path / "0.safetensors").write_bytes(encode(upload, Head(0, 0, 0)))
    refused("needs the truth")
    truth.write_text("user,item\n0,0\n0,2\n1,1\n1,9\n")
    refused("row 9|got 9")
    truth.write_text("user,item\n0,0\n0,x\n1,1\n1,2\n")
    refused('got "x"')
    truth.write_text("user,item\n0,0\n0,2\n1,1\n1,2\n")
    other.write_bytes(encode(upload, Head(0, 0, 5)))
    refused("person 5")
    other.write_bytes(encode(upload, Head(0, 0, 0)))
    refused("same person")
    other.write_bytes(b"not at all")
    refused("not an upload")
    not_finite = Upload({"seen": torch.tensor([1.0, float("nan"), 1])}, torch.ones(()))
    other.write_bytes(encode(not_finite, Head(0, 0, 1)))
    with pytest.raises(DataError, match="NaN or infinity"):
        audit_saved(read_uploads(tmp_path))


def test_saved_uploads_are_not_overwritten(tmp_path):
    (tmp_path / "0.safetensors").write_bytes(b"somebody's")
    with pytest.raises(RunError, match="already holds uploads"):
        audit(*audit_inputs(method="popularity"), AuditScope(people=10, canaries=0, save=tmp_path))


# The page and the command


def test_the_page_shows_all_figures_runs_no_script_and_loads_no_file(tmp_path):
    evil = "<script>alert(1)</script>"
    settings, task, titles = audit_inputs(method="fedmf", wire="clip=1.0,noise=1000.0,secure=10")
    result = audit(settings, task, [evil] * len(titles), AuditScope(people=30))
    result = result.model_copy(update={"command": f"fedtaste audit --data '{evil}'", "data": evil, "report": ""})
    page = write_audit(result, tmp_path).read_text("utf-8")
    assert evil not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page and "Content-Security-Policy" in page
    assert not re.search(r"""(?:src|href|srcset|url)\s*[=(]\s*["']?(?!data:|#)[^"'\s>]*//""", page)
    assert "http" not in re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+|http-equiv", "", page)
    for each in result.rows:
        assert f'value="{each.f1}"' in page and f'value="{each.auc}"' in page
    assert "What this does not show" in page and page.count("not seen") >= 3
    assert json.loads((tmp_path / "audit.json").read_text()) == result.dump()
    assert (tmp_path / "plots" / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_headline_and_verdict_agree_with_the_figures():
    leaky, quiet = audit_result("fedmf"), audit_result("local")
    assert "100 of 100" in headline(leaky) and "one upload" in headline(leaky)
    assert [good for good, _ in verdict(leaky)] == [False] and [good for good, _ in verdict(quiet)] == [True]
    assert "gives people’s lists away" in render(leaky, draw(leaky))
    noisy = audit_result("fedmf", "clip=1.0,noise=1000.0,secure=10")
    assert "the sum of 10 people’s uploads" in headline(noisy)


def test_the_command_prints_one_json_object(tmp_path):
    args = ("audit", "--data", SMALL, "--method", "fedmf", "--people", 20, "--save", tmp_path / "s")
    result = fedtaste(*args, "--out", tmp_path / "a", "--json").json
    assert result.keys() >= MAIN
    assert result["f1"] == 1.0 and result["people"] == 20 and result["epsilon"] is None
    assert set(result["sums"]) == {"1", "2", "5", "10"} and result["report"] == str(tmp_path / "a" / "audit.html")
    from_saved = fedtaste("audit", "--uploads", tmp_path / "s", "--out", tmp_path / "b", "--json").json
    assert from_saved["sums"] == result["sums"] and from_saved.keys() >= MAIN
    output = fedtaste("audit", "--uploads", tmp_path / "s", "--out", tmp_path / "c")
    assert output.code == 0 and "100 of 100" in " ".join(output.out.split()) and "Report:" in output.out


@pytest.mark.parametrize(
    "args,parts",
    [
        (("--data", "least-squares"), ("lists of items", "regression")),
        (("--data", SMALL, "--method", "fedmff"), ("Did you mean",)),
        (("--data", SMALL, "--people", 1), ("--people", "at least 2, got 1")),
        (("--data", SMALL, "--rounds", 0), ("--rounds", "at least 1, got 0")),
        (("--data", SMALL, "--wire", "noise=1.0,clip=1.0"), ("order",)),
        (("--data", SMALL, "--method", "fedveil", "--rounds", 9), ("from 1 to 3",)),
        (("--data", SMALL, "--truth", "x.csv"), ("--uploads",)),
        (("--uploads", "nowhere"), ("does not exist",)),
        (("--uploads", "nowhere", "--wire", "clip=1.0"), ("as they are",)),
    ],
)
def test_wrong_options_are_refused_and_no_file_is_written(args, parts, tmp_path):
    fedtaste("audit", *args, "--out", tmp_path / "a", "--json").refused(*parts)
    assert not (tmp_path / "a").exists()


def test_noise_without_clipping_has_no_epsilon():
    result = audit_result("fedmf", "noise=0.5")
    assert result.epsilon is None and any("no finite epsilon" in note for note in result.notes)
