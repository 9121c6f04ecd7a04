"""Recommender: fit, recommend, filters, similar items, update, removal, files; and the ten lines of the README."""

from __future__ import annotations

import json
import re
import stat
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedtaste as ft
from fedtaste.data.interactions import Interactions
from fedtaste.errors import DataError, RunError, SettingError
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.serving.api import Api
from fedtaste.serving.bundle_recommender import BundleRecommender

SHARED = Path(__file__).parents[2] / "shared" / "data" / "movietweetings.csv.gz"
DATA = "synthetic:80x60x1600"


@pytest.fixture(scope="module")
def data() -> Interactions:
    return ft.load(DATA)


@pytest.fixture(scope="module")
def model(data) -> ft.Recommender:
    return ft.Recommender("fedals", k=8, rounds=3).fit(data, progress=False)


def history(data: Interactions, person: int) -> list[str]:
    return [data.items[item] for item in data.histories().of(person)]


# --------------------------------------------------------------------------------------------- recommendations


@pytest.mark.parametrize(
    "method, settings",
    [
        ("fedals", {}),
        ("fedals", {"task": "ratings"}),
        ("fedrecon", {"rounds": 2, "recon_passes": 3}),
        ("fedrecon", {"rounds": 2, "solver": "exact", "loss": "squared"}),
        ("fedtrail", {}),
        ("fedtrail", {"parts": "trail+als", "rounds": 2}),
        ("fedseq", {"participations": 1, "length": 8}),
        ("popularity", {}),
        ("fcf", {"rounds": 2}),
    ],
)
def test_the_table_of_everybody_equals_lists_person_by_person(data, method, settings):
    model = ft.Recommender(method, **settings, **({"k": 8} if method != "popularity" else {})).fit(data, progress=False)
    table = model.recommend(n=5)
    assert table["user"].n_unique() == 80 and len(table) == 400
    ratings = settings.get("task") == "ratings"
    values = data.histories().values
    for person in range(0, 80, 9):
        rows = table.filter(pl.col("user") == data.people[person])
        starts = data.histories().starts
        stars = values[starts[person] : starts[person + 1]].tolist()
        taste = {"ratings": dict(zip(history(data, person), stars))} if ratings else {"likes": history(data, person)}
        single = model.recommend_for(**taste, n=5, timed=True)
        assert [each.item for each in single.items] == rows["item"].to_list()
        assert np.allclose([each.score for each in single.items], rows["score"].to_numpy(), atol=1e-5)
        assert rows["rank"].to_list() == [1, 2, 3, 4, 5]


def test_nobody_gets_what_they_have_unless_asked_for(model, data):
    table = model.recommend(n=60)
    for person in range(0, 80, 11):
        mine = table.filter(pl.col("user") == data.people[person])["item"].to_list()
        assert set(mine) == set(data.items) - set(history(data, person))
    with_history = model.recommend([data.people[0]], n=60, include_history=True)
    assert set(with_history["item"]) == set(data.items)


def test_filters_leave_what_they_say(model, data):
    users = list(data.people[:7])
    stock, sold_out = data.items[:20], data.items[5:25]
    table = model.recommend(users, n=10, only=stock, exclude=sold_out)
    assert set(table["item"]) <= set(data.items[:5])
    full = model.recommend(users, n=60, exclude=sold_out)
    expected = full.filter(pl.col("item").is_in(list(data.items[:5])))
    assert [(r["user"], r["item"]) for r in table.iter_rows(named=True)] == [
        (r["user"], r["item"]) for r in expected.iter_rows(named=True)
    ]
    answer = model.recommend_for(likes=[data.titles[3]], only=list(stock), n=3)
    assert {each.item for each in answer.items} <= set(stock) - {data.items[3]} and answer.history == (data.titles[3],)


def test_reasons_name_the_likes_and_dislikes_are_not_listed(model, data):
    liked, disliked = list(data.items[2:6]), [data.items[10]]
    answer = model.recommend_for(likes=liked, dislikes=disliked, n=10)
    titles = {data.titles[at] for at in range(2, 6)}
    assert any(each.because for each in answer.items) and all(set(each.because) <= titles for each in answer.items)
    assert disliked[0] not in {each.item for each in answer.items} and answer.disliked == (data.titles[10],)
    plain = model.recommend_for(likes=liked, n=10)
    assert [each.score for each in plain.items] != [each.score for each in answer.items], "a dislike is an example"


def test_people_with_nothing_left_are_named_in_a_warning(model, data):
    first = data.people[0]
    with pytest.warns(UserWarning, match=f'"{first}" is without a row'):
        table = model.recommend(list(data.people[:3]), only=history(data, 0))
    assert first not in table["user"].to_list() and len(table)
    with pytest.raises(SettingError, match="leave no item for anybody"):
        model.recommend([first], only=history(data, 0))


@pytest.mark.parametrize(
    "call, error, parts",
    [
        (lambda m: m.recommend(["nobody"]), DataError, ["nobody", "synthetic"]),
        (lambda m: m.recommend("1"), SettingError, ["users must be a list"]),
        (lambda m: m.recommend(1), SettingError, ["users must be a list", "int"]),
        (lambda m: m.recommend(["1", None]), SettingError, ["users has missing values"]),
        (lambda m: m.recommend(["1"], exclude=5), SettingError, ["exclude must be a list"]),
        (lambda m: m.personal("5"), SettingError, ["history must be a list"]),
        (lambda m: m.update(DATA, rounds="no"), SettingError, ["rounds", "no"]),
        (lambda m: m.recommend(["1"], n=0), SettingError, ["n must be", "0"]),
        (lambda m: m.recommend(["1"], only=["no such thing"]), SettingError, ["only", "no such thing"]),
        (lambda m: m.recommend(["1"], only=[]), SettingError, ["only names no item"]),
        (lambda m: m.recommend(["1"], exclude="text"), SettingError, ["exclude must be a list"]),
        (lambda m: m.recommend(["1"], on_unknown="maybe"), SettingError, ["on_unknown", "maybe"]),
        (lambda m: m.recommend_for(), SettingError, ["likes names no items"]),
        (lambda m: m.recommend_for(["5"], ["5"]), SettingError, ["among the likes and the dislikes"]),
        (lambda m: m.recommend_for(["5"], ratings={"6": 3}), SettingError, ["no ratings"]),
        (lambda m: m.similar_items("no such thing"), SettingError, ["no such thing"]),
        (lambda m: m.similar_items("5", n=True), SettingError, ["n must be"]),
        (lambda m: m.personal([]), SettingError, ["history names no items"]),
        (lambda m: m.update(DATA, method="fedmf"), SettingError, ["method", "rounds"]),
        (lambda m: ft.Recommender("fedals").recommend(["1"]), SettingError, ["not fitted"]),
        (lambda m: ft.Recommender("fedalls").fit(DATA), SettingError, ["fedals"]),
        (lambda m: ft.Recommender("fedals", kk=3).fit(DATA), SettingError, ["kk", "k"]),
        (lambda m: ft.Recommender("fedals", rounds=-1).fit(DATA), SettingError, ["rounds", "-1"]),
        (lambda m: ft.Recommender("fedals", new_people=0.5).fit(DATA), SettingError, ["new_people"]),
        (lambda m: ft.Recommender("fedals").fit("linear"), DataError, ["people and items"]),
        (lambda m: ft.Recommender("fedals").fit("no-such-file.csv"), DataError, ["no-such-file.csv"]),
        (lambda m: ft.Recommender.load("no-such-folder"), RunError, ["no-such-folder", "no model"]),
    ],
)
def test_mistakes_are_refused_with_the_argument(model, call, error, parts):
    with pytest.raises(error) as caught:
        call(model)
    for part in parts:
        assert part in str(caught.value)


def test_unknown_users_and_items_can_be_ignored(model, data):
    first = data.people[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = model.recommend([first, "nobody"], n=3, exclude=["nothing"], on_unknown="ignore")
    assert set(table["user"]) == {first}
    with pytest.warns(UserWarning, match='"nobody" is not in the data'):
        model.recommend([first, "nobody"], n=3, on_unknown="warn")


def test_similar_items_point_in_the_same_direction(model, data):
    answer = model.similar_items(data.titles[3], n=5)
    table = model._model.shared["item"].double().numpy()
    unit = table / np.linalg.norm(table, axis=1)[:, None]
    cosine = unit @ unit[3]
    cosine[3] = -2
    assert [each.item for each in answer.items] == [data.items[at] for at in np.argsort(-cosine)[:5]]
    assert (answer.item, answer.title) == (data.items[3], data.titles[3])
    with pytest.raises(SettingError, match="no item vectors"):
        ft.Recommender("popularity").fit(data, progress=False).similar_items("3")


def test_a_device_computes_what_the_table_shows(model, data):
    person = model.personal(history(data, 4))
    mine = [item for item in person.scores["item"].to_list() if item not in history(data, 4)][:3]
    assert mine == model.recommend([data.people[4]], n=3)["item"].to_list()
    assert person.parameters.keys() == {"user"} and person.parameters["user"].shape == (8,)
    assert person.received_bytes > 60 * 8 * 4


# --------------------------------------------------------------------------------------------- training


def test_a_fit_learns_from_everything(model, data):
    result = model.result
    assert isinstance(result, FitResult) and (result.rounds, result.members, result.valid) == (3, 80, None)
    assert result.interactions == len(data) == model._model.histories.lengths.sum()
    searched = ft.Recommender("fedals", k=8).fit(data, progress=False).result
    assert searched.valid and 1 <= searched.rounds <= 8 and len(searched.curve) == 8


def test_evaluation_is_that_of_a_run(model, data):
    result = model.evaluate(progress=False)
    assert isinstance(result, RunResult) and result.protocol == "clean"
    assert result.new is not None and 0 < result.metric("seen.sampled.hr@10") <= 1


def test_a_private_fit_states_its_epsilon_and_updates_add_up(data, tmp_path):
    model = ft.Recommender("fedmf", k=4, rounds=2, epsilon=5.0, wire="clip=1").fit(data, progress=False)
    first = model.result
    assert first.valid is None and first.privacy.epsilon == pytest.approx(5.0, rel=0.02)
    model.update(newer(data), epsilon=2.0, progress=False)
    assert model.result.privacy.epsilon == pytest.approx(first.privacy.epsilon + 2.0, rel=0.02)
    assert model.result.privacy.delta == pytest.approx(2 * first.privacy.delta)
    assert "epsilon 7" in model.result.notes[0]


def test_private_trainings_are_entered_into_the_ledger_unless_told_otherwise(data, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTASTE_LEDGERS", str(tmp_path / "ledgers"))
    private = {"k": 4, "rounds": 1, "epsilon": 5.0, "wire": "clip=1"}
    for runs in (1, 2):
        model = ft.Recommender("fedmf", **private).fit(data, progress=False)
        assert model.result.privacy.ledger.runs == runs
    assert ft.evaluate("fedmf", data, **private).privacy.ledger.runs == 3
    assert ft.Recommender("fedmf", ledger=False, **private).fit(data, progress=False).result.privacy.ledger is None
    own = ft.Recommender("fedmf", ledger=tmp_path / "own.json", **private).fit(data, progress=False)
    assert own.result.privacy.ledger.runs == 1 and (tmp_path / "own.json").exists()
    with pytest.raises(SettingError, match="ledger would change nothing"):
        ft.Recommender("fedmf", rounds=1, ledger="own.json").fit(data, progress=False)


@pytest.mark.parametrize(
    "settings, part",
    [
        ({"wire": "noise=1,clip=1"}, 'wire="clip=1,noise=1"'),
        ({"epsilon": 3.0}, 'wire="clip=1.0"'),
        ({"k": "many"}, "Example: k="),
        ({"delta": 1e-6}, "delta would change nothing"),
        ({"method": "centralised", "cohort": 5}, "cohort and dropout"),
    ],
)
def test_errors_in_python_name_keywords(settings, part):
    method = settings.pop("method", "fedmf")
    for call in (lambda: ft.Recommender(method, **settings).fit(DATA), lambda: ft.evaluate(method, DATA, **settings)):
        with pytest.raises(SettingError) as caught:
            call()
        assert part in str(caught.value) and "--" not in str(caught.value)


def test_a_private_update_of_a_model_without_noise_promises_nothing(data):
    model = ft.Recommender("fedmf", k=4, rounds=1).fit(data, progress=False)
    model.update(newer(data), epsilon=2.0, wire="clip=1", progress=False)
    assert model.result.privacy.epsilon is None and "No epsilon is promised" in model.result.notes[0]


def test_nobody_is_removed_from_a_model_with_noise(data):
    """The difference of the models before and after would be what the person sent."""
    model = ft.Recommender("popularity", epsilon=5.0, wire="clip=1").fit(data, progress=False)
    with pytest.raises(SettingError, match="Train again"):
        model.forget([data.people[0]])


def newer(data: Interactions) -> Interactions:
    """New interactions of two old people and one new one, with one new item."""
    person, item = np.array([0, 0, 1, 2, 2], np.int32), np.array([0, 1, 0, 0, 2], np.int32)
    names = (data.people[5], data.people[6], "newcomer"), (data.items[7], "new item", data.items[9])
    times = data.time.max() + np.arange(1.0, 6.0)
    return Interactions("week 2", person, item, *names, value=np.full(5, 4.0, np.float32), time=times)


@pytest.mark.parametrize("method", ["fedals", "fedtrail", "fedmf", "popularity", "fedrap"])
def test_an_update_knows_new_people_and_items(data, method):
    settings = {} if method in ("popularity", "fedtrail") else {"rounds": 3}
    model = ft.Recommender(method, **settings).fit(data, progress=False)
    before = {name: value.clone() for name, value in model._model.shared.items()}
    model.update(newer(data), progress=False)
    assert model.result.rounds == 1 and model.result.people == 81 and model.result.items == 61
    assert model.recommend(["newcomer"], n=4)["user"].to_list() == ["newcomer"] * 4
    after = model._model.shared
    assert all(after[name].shape[0] in (value.shape[0], 61) for name, value in before.items() if value.ndim)


@pytest.mark.parametrize("method", ["popularity", "fedtrail"])
def test_counts_of_an_update_equal_a_training_on_all_data(data, method):
    continued = ft.Recommender(method).fit(data, progress=False).update(newer(data), progress=False)
    whole = ft.Recommender(method).fit(continued._model.data, progress=False)
    for name, value in whole._model.shared.items():
        assert np.allclose(value.abs().numpy(), continued._model.shared[name].abs().numpy(), atol=1e-4), name


@pytest.mark.parametrize("method", ["popularity", "fedtrail"])
def test_a_removed_person_has_left_nothing(data, method):
    gone = data.people[3]
    model = ft.Recommender(method).fit(data, progress=False)
    kept = model.recommend([data.people[4]], n=5)
    model.forget([gone])
    keep = data.person != 3
    rest = data.rows(keep)
    number = np.array([*range(3), -1, *range(3, 79)], np.int32)
    people = tuple(name for name in data.people if name != gone)
    without = Interactions(
        "rest", number[rest.person], rest.item, people, data.items, rest.value, rest.time, data.titles, data.genres
    )
    expected = ft.Recommender(method).fit(without, progress=False)
    for name, value in expected._model.shared.items():
        assert np.allclose(value.abs().numpy(), model._model.shared[name].abs().numpy(), atol=1e-5), name
    with pytest.raises(DataError, match=gone):
        model.recommend([gone])
    assert len(model.recommend([data.people[4]], n=5)) == len(kept) and model.result.people == 79


@pytest.mark.parametrize("timed", [True, False])
def test_removal_is_exact_where_times_are_equal(data, timed):
    """Equal times are ordered by a number that does not change when people leave, one after the other."""
    time = np.floor(data.time / 86400 / 30) if timed else None  # months, or nothing
    coarse = Interactions("shop", data.person, data.item, data.people, data.items, None, time)
    model = ft.Recommender("fedtrail", parts="trail").fit(coarse, progress=False)
    for name in data.people[:6]:
        model.forget([name])
    rest = model._model.data
    expected = ft.Recommender("fedtrail", parts="trail").fit(rest, progress=False)
    state, other = (each._model.trained_state() for each in (model, expected))
    for name, value in other.memory.items():
        assert np.allclose(value.numpy(), state.memory[name].numpy(), atol=1e-4), name
    assert state.memory["pairs"].min() > -1e-4


def test_other_methods_say_what_removal_needs(model, data):
    with pytest.raises(SettingError, match="Train again"):
        model.forget([data.people[0]])
    assert len(model.recommend([data.people[0]], n=2)) == 2, "the model is as it was"


# --------------------------------------------------------------------------------------------- files


def test_a_saved_model_serves_the_same_and_needs_no_data(model, data, tmp_path):
    model.save(tmp_path / "shop")
    loaded = ft.Recommender.load(tmp_path / "shop")
    assert loaded.recommend(n=3).equals(model.recommend(n=3)) and "k='8'" in repr(loaded)
    assert stat.S_IMODE((tmp_path / "shop" / "interactions.safetensors").stat().st_mode) == 0o600
    loaded.update(newer(data), progress=False)
    loaded.save(tmp_path / "shop")
    assert ft.Recommender.load(tmp_path / "shop").recommend(["newcomer"], n=1)["rank"].to_list() == [1]


def test_a_model_saved_without_people_holds_none(model, data, tmp_path):
    model.save(tmp_path / "shop", people=False)
    assert not {"interactions.safetensors", "final.safetensors"} & {f.name for f in (tmp_path / "shop").iterdir()}
    loaded = ft.Recommender.load(tmp_path / "shop")
    with pytest.raises(DataError, match="without people"):
        loaded.recommend(["1"])
    likes = list(data.items[:3])
    assert loaded.recommend_for(likes, n=3) == model.recommend_for(likes, n=3)
    assert loaded.personal(likes).received_bytes


def test_a_model_is_not_saved_over_something_else(model, tmp_path):
    model.save(tmp_path / "shop")
    (tmp_path / "shop" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="a model that save wrote and also notes.txt"):
        model.save(tmp_path / "shop")
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    with pytest.raises(RunError, match="symbolic link"):
        model.save(tmp_path / "link")
    with pytest.raises(RunError, match="is a file"):
        model.save(tmp_path / "shop" / "notes.txt")


def test_the_page_of_a_model_recommends_the_same(model, data, tmp_path):
    model.export(tmp_path / "site", float32=True)
    page = ft.Recommender.load(tmp_path / "site")
    likes = list(data.items[:4])
    lists = [[each.item for each in m.recommend_for(likes, n=10).items] for m in (model, page)]
    assert lists[0] == lists[1]
    near = [[each.item for each in m.similar_items(data.items[3], n=5).items] for m in (model, page)]
    assert near[0] == near[1]
    filtered = page.recommend_for(likes, only=list(data.items[:10]), n=10)
    assert {each.item for each in filtered.items} <= set(data.items[4:10])
    for call in (lambda: page.recommend(["1"]), lambda: page.update(data), page.evaluate, lambda: page.personal(likes)):
        with pytest.raises(SettingError, match="bundle holds nobody"):
            call()


def test_a_bundle_is_loaded_without_torch(model, tmp_path):
    import subprocess
    import sys

    model.export(tmp_path / "site")
    code = (
        "import sys; from fedtaste import Recommender; "
        f"r = Recommender.load({str(tmp_path / 'site')!r}); r.recommend_for(['3']); r.similar_items('3'); "
        "assert not {'torch', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --------------------------------------------------------------------------------------------- sequences


@pytest.fixture(scope="module")
def sequence(data) -> ft.Recommender:
    return ft.Recommender("fedseq", k=8, participations=1, length=8).fit(data, progress=False)


def test_a_sequence_model_reads_likes_in_their_order(sequence, data):
    likes = list(data.items[:12])

    def scores(likes, **options):
        return {each.item: each.score for each in sequence.recommend_for(likes, n=60, **options).items}

    assert scores(likes) == scores(likes, timed=True)
    assert scores(likes) != pytest.approx(scores(likes[::-1]), abs=1e-3)
    best = sequence.recommend_for(likes, n=3)
    assert set(best.items[0].because) <= {data.titles[at] for at in range(12)} and best.items[0].because
    left = scores(likes, dislikes=[best.items[0].item])
    assert left == {item: score for item, score in scores(likes).items() if item != best.items[0].item}
    assert len(sequence.similar_items(data.items[3], n=5).items) == 5
    assert list(sequence.personal(likes).parameters) == ["item", "user"]


def test_a_sequence_model_is_saved_exported_and_answers_requests(sequence, data, tmp_path):
    sequence.save(tmp_path / "shop")
    loaded = ft.Recommender.load(tmp_path / "shop")
    assert loaded.recommend(n=3).equals(sequence.recommend(n=3))
    loaded.export(tmp_path / "site", float32=True)
    page = ft.Recommender.load(tmp_path / "site")
    api = Api(BundleRecommender.load(tmp_path / "site"))
    for likes in (list(data.items[:5]), list(data.items[4::-1])):
        theirs = sequence.recommend_for(likes, n=10)
        ours = page.recommend_for(likes, n=10)
        assert [(each.item, each.because) for each in ours.items] == [
            (each.item, each.because) for each in theirs.items
        ]
        body = json.dumps({"likes": likes, "n": 10}).encode()
        reply = api.answer("POST", "/v1/recommend", "application/json", body)
        assert [each["item"] for each in reply.body["items"]] == [each.item for each in theirs.items]


# --------------------------------------------------------------------------------------------- the ten lines


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_ten_lines_on_a_real_data_frame(library, tmp_path, monkeypatch):
    if not SHARED.exists():
        pytest.skip("needs ../shared/data/movietweetings.csv.gz")
    frames = pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    df = frames.read_csv(SHARED)
    late = df["timestamp"] > df["timestamp"].quantile(0.9)
    first, last = (df[~late], df[late]) if library == "pandas" else (df.filter(~late), df.filter(late))
    columns = df[["item", "title", "genres"]]
    products = columns.drop_duplicates("item") if library == "pandas" else columns.unique("item", keep="first")
    data = ft.Interactions.from_frame(first, user="user", item="item", rating=None, time="timestamp", items=products)
    model = ft.Recommender("fedals", seed=0, k=16, rounds=4).fit(data)
    people = [str(each) for each in first["user"][:2]]
    table = model.recommend(people, n=10, exclude=data.titles[:50])
    assert type(table).__module__.split(".")[0] == library and list(table.columns) == ["user", "item", "rank", "score"]
    assert len(table) == 20 and set(table["user"]) == set(people)
    answer = model.recommend_for(likes=[data.titles[10]], dislikes=[data.titles[11]], n=10, only=data.titles[:500])
    assert len(answer.items) == 10
    assert len(model.similar_items(data.titles[10], n=10).items) == 10
    model.save("shop")
    loaded = ft.Recommender.load("shop")
    loaded.export("site")
    assert Path("site/index.html").exists()
    loaded.update(last)
    assert loaded.result.people >= model.result.people
    assert len(model.personal([data.titles[10]]).scores) == len(data.items)
    assert model.evaluate(progress=False).seen.people > 1000


def test_an_item_that_nobody_took_is_recommended_by_its_features():
    """Two groups of people take items of two genres; a new item of a genre goes to its group."""
    rng = np.random.default_rng(0)
    genre = np.array(["War", "Love"] * 10)
    rows = [(str(u), f"i{j}") for u in range(40) for j in np.flatnonzero(genre == genre[u % 2]) if rng.random() < 0.7]
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    catalogue = pl.DataFrame({"item": [*(f"i{j}" for j in range(20)), "new war", "new love"]})
    catalogue = catalogue.with_columns(genres=pl.Series([*genre, "War", "Love"]))
    data = ft.Interactions.from_frame(frame, items=catalogue)
    model = ft.Recommender("fedals", k=4, rounds=3).fit(data, progress=False)
    table = model.recommend(n=22, only=["new war", "new love"])
    first = table.filter(pl.col("rank") == 1)
    wanted = pl.when(pl.col("user").cast(pl.Int64) % 2 == 0).then(pl.lit("new war")).otherwise(pl.lit("new love"))
    assert first.select((pl.col("item") == wanted).all()).item() and len(first) == 40


def own_popularity(model, *, power: float = 1.0):
    """A method of the user's own: popularity to a power."""
    return ft.popularity(model)


def test_a_method_of_the_users_own_is_fitted(data):
    model = ft.Recommender(own_popularity).fit(data, progress=False)
    expected = ft.Recommender("popularity").fit(data, progress=False)
    assert model.recommend(n=5).equals(expected.recommend(n=5))
    assert ft.evaluate(own_popularity, data).metric("seen.sampled.hr@10") is not None


def test_the_code_of_the_library_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / "library.md").read_text("utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "docs/library.md", "exec"), names)
    assert "answer" in names


@pytest.mark.parametrize("like", [-1, 60])
def test_likes_beyond_the_catalogue_are_refused_by_number(model, like):
    opened = model._model
    plan = opened.plan(True)
    with pytest.raises(SettingError, match=f"from 0 to 59, got {like}"):
        ft.top_items(plan.method, plan.model, opened.trained_state(), likes=[like])


def test_a_file_is_read_with_the_columns_of_the_settings(tmp_path):
    path = tmp_path / "shop.csv"
    path.write_text("customer;sku\n" + "".join(f"c{n % 9};p{n % 7}\n" for n in range(60)))
    for columns in ("user=customer,item=sku", {"user": "customer", "item": "sku"}):
        model = ft.Recommender("popularity", columns=columns).fit(path, progress=False)
        assert model.result.people == 9 and model.update(path, progress=False).result.people == 9
    assert ft.evaluate("popularity", str(path), columns="user=customer,item=sku").people == 9
    with pytest.raises(SettingError, match="are for files"):
        ft.Recommender("popularity", separator=";").fit(ft.load("synthetic:30x20x200"), progress=False)


def test_a_column_named_twice_is_refused(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("user,item,item\n1,2,3\n")
    with pytest.raises(DataError, match='the header names the column "item" twice'):
        ft.load(path)
