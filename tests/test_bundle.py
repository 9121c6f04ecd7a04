"""`fedtaste export`, the format of a bundle and BundleRecommender: the lists of `fedtaste recommend`, refusals."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtaste.errors import DataError, RunError, SettingError
from fedtaste.serving.bundle import FORMAT, UNPINNED, Manifest, parse, read_bundle, sha256
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.export import bundle_files, export, popularity
from fedtaste.serving.item_lists import genre_items
from fedtaste.serving.item_map import place
from fedtaste.serving.rebuild import Taste
from fedtaste.serving.recommend import recommend
from support.bundles import MODELS, bundle_of, export_source, run_of
from support.command import fedtaste

NOBODY = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def films():
    return BundleRecommender.load(bundle_of("fedals"))


@pytest.fixture
def bundle(tmp_path):
    """A copy of a bundle that a test may damage."""
    shutil.copytree(bundle_of("fedals"), tmp_path / "bundle")
    return tmp_path / "bundle"


def titles_of(recommender, items):
    return [recommender.bundle.titles[at] for at in items]


@pytest.mark.parametrize("name", MODELS)
def test_a_float32_bundle_gives_the_lists_of_fedtaste_recommend(name):
    mine, rng = BundleRecommender.load(bundle_of(name, float32=True)), np.random.default_rng(1)
    for _ in range(3):
        likes = titles_of(mine, rng.choice(len(mine.bundle.titles), rng.integers(2, 12), replace=False))
        theirs = recommend(run_of(name), likes=likes, n=20)
        ours = mine.recommend(likes, n=20)
        if name != "fedrap":  # its devices also train a private table; the bundle has the common part
            assert [x.title for x in ours.items] == [x.title for x in theirs.items]
            assert [x.score for x in ours.items] == pytest.approx([x.score for x in theirs.items], abs=2e-4)
        assert set(ours.history) == set(theirs.history) and not ours.popular
        assert not set(likes) & {x.title for x in ours.items}


@pytest.mark.parametrize("name", MODELS)
def test_an_int8_bundle_keeps_95_percent_of_the_lists(name):
    small, exact = (BundleRecommender.load(bundle_of(name, float32=wide)) for wide in (False, True))
    rng, shares = np.random.default_rng(2), []
    for _ in range(40):
        likes = rng.choice(len(small.bundle.titles), rng.integers(3, 40), replace=False)
        taste = Taste(likes, np.full(len(likes), small.scale[1]), NOBODY)
        a, b = small.rank(taste, 20).items, exact.rank(taste, 20).items
        shares.append(len(np.intersect1d(a, b)) / 20)
    assert np.mean(shares) >= 0.95


@pytest.mark.parametrize("name", ["fedals", "fedtrail", "fedtrail-trail", "fedseq", "fedseq-gru"])
def test_test_vectors_equal_the_ranking_of_the_loaded_bundle(name):
    films = BundleRecommender.load(bundle_of(name))
    vectors, catalogue = json.loads(films.files["vectors.json"]), films.bundle.items
    for case in vectors["cases"]:
        likes = np.array(case["likes"]).reshape(-1, 2)
        taste = Taste(likes[:, 0].astype(np.int64), likes[:, 1], np.array(case["dislikes"], np.int64), case["timed"])
        genres = [catalogue.genre_names[number] for number in case.get("genres", [])]
        allowed = genre_items(catalogue, genres) if genres else None
        ranking = films.rank(taste, 20, case["adventurous"], allowed)
        assert ranking.items.tolist() == case["items"] and ranking.popular == case["popular"]
        assert np.allclose(ranking.scores, case["scores"], rtol=1e-12)
        assert ranking.because == case["because"]
    assert any("genres" in case for case in vectors["cases"]) and len(vectors["similar"]) == 3
    for case in vectors["similar"]:
        found = films.similar(films.bundle.names[case["item"]], n=5)
        assert [films.bundle.names.index(one.item) for one in found.items] == case["items"]


def test_export_twice_gives_the_same_bytes(tmp_path, real_maps):
    for name in ("first", "second"):
        export(run_of("fedals"), tmp_path / name)
    (_, first), (_, second) = (read_bundle(tmp_path / name) for name in ("first", "second"))
    assert first == second


def test_every_file_is_pinned_and_the_page_pins_the_manifest(films):
    names = set(films.files)
    assert names == set(films.bundle.manifest.files) | set(UNPINNED)
    assert {p.name for p in bundle_of("fedals").iterdir()} == names
    page = films.files["index.html"].decode()
    assert "{{" not in page and "{{" not in films.files["sw.js"].decode()
    for name in names:
        if name.endswith((".css", ".js")) and name not in ("sw.js", "worker.js"):  # worker.js: by the manifest
            pin = base64.b64encode(bytes.fromhex(sha256(films.files[name]))).decode()
            assert f"sha256-{pin}" in page, f"{name} is not pinned by index.html"


@pytest.mark.parametrize("name", ["items.json", "item.i8", "worker.js", "main.js", "popularity.u8", "MODEL_CARD.md"])
def test_a_changed_file_is_refused_by_name(bundle, name):
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(bytes(content))
    with pytest.raises(RunError, match=f"{name} is not the file"):
        BundleRecommender.load(bundle)


@pytest.mark.parametrize("name", ["index.html", "sw.js"])
def test_a_changed_page_is_refused(bundle, name):
    (bundle / name).write_bytes((bundle / name).read_bytes() + b" ")
    with pytest.raises(RunError, match=f"{name} is not the file"):
        BundleRecommender.load(bundle)


def test_a_changed_but_valid_manifest_is_refused(bundle):
    text = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(text.replace('"people":', '"people": 1'))
    with pytest.raises(RunError, match=r"(index.html|sw.js) is not the file"):
        BundleRecommender.load(bundle)


@pytest.mark.parametrize(
    ("change", "error_text"),
    [
        (lambda m: m | {"format": "fedtaste-bundle-9"}, "fedtaste-bundle-9.*fedtaste-bundle-1"),
        (lambda m: {"format": "tacit-bundle-1", "tacit": "0.6.0", "name": "old"}, r"written by tacit 0\.6\.0"),
        (lambda m: {"files": {}}, "an unknown program"),
        (lambda m: m | {"k": -1}, "k: "),
        (lambda m: m | {"more": 1}, "more"),
        (lambda m: m | {"recipe": m["recipe"] | {"passes": 10**9}}, "recipe.passes"),
        (lambda m: m | {"files": m["files"] | {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "plain file name|exported"),
        (lambda m: m | {"scale": [0, 1e9]}, "scale"),
        (lambda m: m | {"recipe": m["recipe"] | {"lr": 1e300}}, "recipe.lr"),
        (lambda m: [m], "not a JSON object"),
    ],
)
def test_an_invalid_manifest_is_refused(bundle, change, error_text):
    (bundle / "manifest.json").write_text(json.dumps(change(json.loads((bundle / "manifest.json").read_text()))))
    with pytest.raises(RunError, match=error_text):
        BundleRecommender.load(bundle)


def test_a_missing_file_a_missing_manifest_and_broken_json_are_refused(bundle, tmp_path):
    (bundle / "items.json").unlink()
    with pytest.raises(RunError, match="lacks items.json"):
        BundleRecommender.load(bundle)
    with pytest.raises(RunError, match="not a bundle"):
        BundleRecommender.load(tmp_path)
    (bundle / "manifest.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        BundleRecommender.load(bundle)


def write_pinned(bundle, **changes):
    """Change files of a bundle and write correct hashes, as the author of a hostile bundle would."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    old = sha256((bundle / "manifest.json").read_bytes())
    for name, content in changes.items():
        (bundle / name).write_bytes(content)
        manifest["files"][name] = {"bytes": len(content), "sha256": sha256(content)}
    text = json.dumps(manifest).encode()
    (bundle / "manifest.json").write_bytes(text)
    for page in ("index.html", "sw.js"):
        content = (bundle / page).read_bytes().replace(old.encode(), sha256(text).encode())
        pins = [base64.b64encode(bytes.fromhex(x)) for x in (old, sha256(text))]
        (bundle / page).write_bytes(content.replace(*pins))


@pytest.mark.parametrize(
    ("files", "error_text"),
    [
        ({"scale.f32": b"\0" * 12}, "scale.f32 holds 12 bytes"),
        ({"scale.f32": np.full(200, np.nan, "<f4").tobytes()}, "not finite"),
        ({"items.json": b'{"names": [], "titles": [], "genres": [], "genre_names": []}'}, "does not hold 200 names"),
        ({"items.json": json.dumps({"names": [1] * 200, "titles": ["a"] * 200, "genres": [[]] * 200,
                                    "genre_names": []}).encode()}, "no title, name or genre"),
        ({"items.json": json.dumps({"names": ["1"] * 200, "titles": ["a"] * 200, "genres": [[7]] * 200,
                                    "genre_names": ["b"]}).encode()}, "no title, name or genre"),
        ({"items.json": b"[" * 100_000}, "cannot be read"),
    ],
)  # fmt: skip
def test_invalid_contents_with_correct_hashes_are_refused(bundle, files, error_text):
    write_pinned(bundle, **files)
    with pytest.raises(RunError, match=error_text):
        BundleRecommender.load(bundle)


def test_recommendations_have_reasons_and_respect_dislikes(films):
    likes, dislikes = titles_of(films, [3, 8, 21]), titles_of(films, [40])
    likes_only = films.recommend(likes, n=15)
    with_dislikes = films.recommend(likes, dislikes=dislikes, n=15)
    assert likes_only.items != with_dislikes.items
    assert dislikes[0] not in {x.title for x in with_dislikes.items}
    assert any(x.because for x in likes_only.items)
    assert all(set(x.because) <= set(likes) for x in likes_only.items)


def test_the_reason_is_the_like_with_the_largest_share_of_the_score(films):
    """In a ridge solution the score is the sum of the shares of all likes; the reason has the largest share."""
    taste = Taste(np.array([3, 8, 21, 60]), np.ones(4), NOBODY)
    ranking = films.rank(taste, 1)
    top, why = int(ranking.items[0]), ranking.because[0][0]
    t, r = films.tables, films.recipe
    f = t.features(taste.likes)
    system = f.T @ f + films.gram + r.lam * (4 + r.prior) * np.eye(f.shape[1])
    shares = t.features(np.array([top]))[0] @ np.linalg.solve(system, f.T)
    assert shares.sum() == pytest.approx(ranking.scores[0])
    assert int(taste.likes[shares.argmax()]) == why


def test_without_likes_the_most_popular_items_are_recommended(films):
    result = films.recommend(n=5)
    assert result.popular and result.history == () and len(result.items) == 5
    fame = dict(zip(films.bundle.titles, films.bundle.popularity))
    assert [fame[x.title] for x in result.items] == sorted(films.bundle.popularity.tolist(), reverse=True)[:5]
    assert films.recommend(dislikes=[result.items[0].title], n=5).popular


def test_nothing_is_recommended_to_a_person_who_likes_everything(films):
    assert films.recommend(films.bundle.titles, n=5).items == ()


@pytest.mark.parametrize(
    ("call", "error_text"),
    [
        (lambda r: r.recommend(["No Such Thing At All"]), "is not in the catalogue of 200 items"),
        (lambda r: r.recommend(n=0), "at least 1"),
        (lambda r: r.recommend(n=True), "at least 1"),
        (lambda r: r.recommend(adventurous=2), "from -1 to 1"),
        (lambda r: r.recommend(adventurous=float("nan")), "from -1 to 1"),
        (lambda r: r.recommend("Toy Story"), "likes must be a list"),
        (lambda r: r.recommend([r.bundle.titles[0]], dislikes=[r.bundle.titles[0]]), "Choose one"),
        (lambda r: r.recommend(ratings={r.bundle.titles[0]: 1.0}), "liked or not"),
    ],
)
def test_wrong_arguments_of_recommend_are_refused(films, call, error_text):
    with pytest.raises((DataError, SettingError), match=error_text):
        call(films)


def test_ratings_models_accept_ratings_as_input():
    mine = BundleRecommender.load(bundle_of("fedals-ratings"))
    low, high = mine.scale
    a, b = mine.bundle.titles[3], mine.bundle.titles[9]
    assert mine.recommend(ratings={a: high, b: low}) != mine.recommend(ratings={a: low, b: high})
    assert mine.recommend([a]).items == mine.recommend(ratings={a: high}).items
    assert all(x.because != (b,) for x in mine.recommend(ratings={a: high, b: low}, n=50).items)
    for bad in (high + 1, float("nan"), "five"):
        with pytest.raises(SettingError, match="numbers from"):
            mine.recommend(ratings={a: bad})
    with pytest.raises(SettingError, match="low ratings instead"):
        mine.recommend(dislikes=[a])


@pytest.mark.parametrize("name", ["fedals", "fedtrail", "fedtrail-trail"])
def test_timed_lists_give_recent_likes_more_weight(name):
    films = BundleRecommender.load(bundle_of(name))
    likes = titles_of(films, [3, 8, 21, 60, 77, 90])
    assert films.recommend(likes, timed=True) != films.recommend(likes)
    assert films.recommend(likes, timed=True) != films.recommend(likes[::-1], timed=True)
    assert films.recommend(likes).items == films.recommend(likes[::-1]).items, "order alone must not count"


@pytest.mark.parametrize("name", ["fedtrail", "fedtrail-trail"])
def test_a_long_list_without_times_counts_as_a_whole_in_the_bundle_and_in_the_run_folder(name):
    """`reach` is 100 items of an order of time; 130 likes without one all count, in whatever order they are named."""
    mine = BundleRecommender.load(bundle_of(name, float32=True))
    likes = titles_of(mine, np.random.default_rng(5).permutation(200)[:130])
    ours = mine.recommend(likes, n=20)
    assert [x.title for x in ours.items] == [x.title for x in recommend(run_of(name), likes=likes, n=20).items]
    assert [x.title for x in ours.items] == [x.title for x in mine.recommend(likes[::-1], n=20).items]
    assert ours.items != mine.recommend(likes[30:], n=20).items


def test_an_invalid_trail_table_is_refused(tmp_path):
    shutil.copytree(bundle_of("fedtrail"), tmp_path / "bundle")
    columns = np.frombuffer((tmp_path / "bundle" / "trail.u16").read_bytes(), "<u2").copy()
    columns[7] = 200
    write_pinned(tmp_path / "bundle", **{"trail.u16": columns.tobytes()})
    with pytest.raises(RunError, match="names an item beyond the 200"):
        BundleRecommender.load(tmp_path / "bundle")
    bundle, contents = read_bundle(bundle_of("fedtrail"))
    for changes in ({"trail": 0}, {"recipe": replace(bundle.manifest.recipe, trail=None)}):
        with pytest.raises(RunError, match="trail table without its recipe"):
            parse(bundle.manifest.model_copy(update=changes), contents, tmp_path)


def test_the_order_of_likes_counts_for_a_sequence_and_only_the_newest_are_read():
    mine = BundleRecommender.load(bundle_of("fedseq-plain", float32=True))
    likes = titles_of(mine, np.random.default_rng(5).permutation(200)[:60])

    def scores(likes, **options):
        return {item.title: item.score for item in mine.recommend(likes, n=200, **options).items}

    assert scores(likes) == scores(likes, timed=True)  # any order is read
    assert scores(likes) != pytest.approx(scores([*likes[:-2], *likes[:-3:-1]]), abs=1e-4)
    newest = scores(likes[-24:])
    assert scores(likes) == {title: score for title, score in newest.items() if title not in likes}
    best = [item.title for item in mine.recommend(likes, n=5).items]
    left = {title: score for title, score in scores(likes).items() if title not in best}
    assert scores(likes, dislikes=best) == left and left


def test_an_invalid_sequence_network_is_refused(tmp_path):
    bundle, contents = read_bundle(bundle_of("fedseq"))
    manifest, recipe = bundle.manifest, bundle.manifest.recipe
    changes = {
        "without its recipe": {"recipe": replace(recipe, sequence=None)},
        "the reverse": {"recipe": replace(recipe, solver="ridge")},
        "does not fit its tables": {"recipe": replace(recipe, sequence=replace(recipe.sequence, heads=3))},
        "network.i8 holds": {"recipe": replace(recipe, sequence=replace(recipe.sequence, layers=3))},
        "network-vectors.f32 holds": {"recipe": replace(recipe, sequence=replace(recipe.sequence, length=25))},
        "sequence network that does not fit": {"tables": {"offset": False}},
    }
    for text, change in changes.items():
        with pytest.raises(RunError, match=text):
            parse(manifest.model_copy(update=change), contents, tmp_path)


def test_pruned_rows_keep_their_largest_entries(monkeypatch):
    monkeypatch.setattr("fedtaste.serving.export.trail_kept", lambda recipe: 9)
    monkeypatch.setattr("fedtaste.serving.export.place", lambda item, fame: np.zeros((len(item), 2), np.int16))
    source = export_source("fedtrail")
    contents = bundle_files(source, "int8")
    manifest = Manifest.model_validate_json(contents["manifest.json"])
    trail = parse(manifest, contents, Path("bundle")).tables.trail
    assert manifest.trail == 9 and trail.values.shape == (200, 9)
    exact = np.take_along_axis(source.parts.trail, trail.at, axis=1)
    assert np.array_equal(np.sort(exact, axis=1), np.sort(source.parts.trail, axis=1)[:, -9:])
    assert np.abs(trail.values - exact).max() <= source.parts.trail.max() / 127 * 0.51
    assert all(len(set(row)) == 9 for row in trail.at.tolist())


def test_a_private_export_does_not_depend_on_exact_counts():
    source = export_source("fedmf")
    counts, _ = popularity(source)
    other = replace(source, items=source.items | {"counts": [1] * len(source.items["counts"])})
    assert not np.array_equal(popularity(other)[0], counts)
    private_counts, note = popularity(replace(source, private=True))
    assert np.array_equal(popularity(replace(other, private=True))[0], private_counts)
    assert "no counts" in note


def test_similar_items_are_close_on_the_map(real_maps):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 6)) * 3
    item = np.concatenate([c + 0.1 * rng.normal(size=(30, 6)) for c in centres]).astype(np.float32)
    at = place(item, np.arange(120).astype(np.uint8)).astype(float).reshape(4, 30, 2)
    inside = np.mean([np.hypot(*(group - group.mean(0)).T).mean() for group in at])
    apart = np.hypot(*(at.mean(1)[:, None] - at.mean(1)).reshape(-1, 2).T)
    assert inside < apart[apart > 0].min() / 2


@pytest.mark.parametrize("m", [1, 2, 4, 6])
def test_tiny_catalogues_have_a_map(m, real_maps):
    assert place(np.eye(m, 3, dtype=np.float32), np.zeros(m, np.uint8)).shape == (m, 2)


def test_unpopular_items_of_large_catalogues_are_placed_near_their_neighbours(monkeypatch, real_maps):
    monkeypatch.setattr("fedtaste.serving.item_map.MAPPED", 60)
    rng = np.random.default_rng(0)
    side = np.repeat([0, 1], 60)
    item = (np.eye(2)[side] * 3 + 0.1 * rng.normal(size=(120, 2))).astype(np.float32)
    at = place(item, np.tile(np.arange(60), 2).astype(np.uint8)).astype(float)
    near = np.array([np.delete(side, i)[np.hypot(*(np.delete(at, i, 0) - at[i]).T).argmin()] for i in range(120)])
    assert (near == side).mean() > 0.95


def test_export_refuses_foreign_folders_and_leaves_them_unchanged(tmp_path):
    folder, run = tmp_path / "kept", run_of("fedals")
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    fedtaste("export", run, folder).refused("is not empty, and what is in it is not a bundle")
    fedtaste("export", run, folder / "thesis.txt").refused("is not a folder")
    fedtaste("export", tmp_path, tmp_path / "out").refused("is not a run folder")
    assert (folder / "thesis.txt").read_text() == "mine" and not (tmp_path / "out").exists()


def test_export_says_what_to_check_before_own_data_are_published(tmp_path):
    run_folder = tmp_path / "run"
    (tmp_path / "own.csv").write_text(
        "user,item\n" + "".join(f"{u},{(u + i) % 6}\n" for u in range(6) for i in range(4))
    )
    fedtaste("fit", "--data", tmp_path / "own.csv", "--rounds", "1", "--set", "k=2", "--out", run_folder)
    printed = fedtaste("export", run_folder, tmp_path / "site").out
    assert "Before you publish it: The data are your own: make sure that you may publish" in " ".join(printed.split())


def test_export_replaces_an_older_bundle_completely(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["left-over.js"] = {"bytes": 3, "sha256": "0" * 64}
    (bundle / "left-over.js").write_text("old")
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    output = fedtaste("export", run_of("fedals"), bundle, "--float32", "--json").json
    assert output["format"] == FORMAT and output["precision"] == "float32"
    assert not (bundle / "left-over.js").exists() and BundleRecommender.load(bundle)
    assert not [p for p in bundle.parent.iterdir() if p.name.startswith(".")], "no temporary file remains"


def test_a_failed_export_leaves_the_older_bundle_in_its_place(bundle, monkeypatch):
    before, replace_file = {path.name: path.read_bytes() for path in bundle.iterdir()}, os.replace

    def fail(source, target):
        if source.name == "new":
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match="No space left on device"):
        export(run_of("fedals"), bundle)
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    with pytest.raises(RunError, match="No space left on device"):
        export(run_of("fedals"), bundle.parent / "fresh")
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_export_replaces_a_bundle_of_tacit(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    old = {name: value for name, value in manifest.items() if name != "fedtaste"}
    (bundle / "manifest.json").write_text(json.dumps(old | {"format": "tacit-bundle-1", "tacit": "0.6.0"}))
    assert export(run_of("fedals"), bundle).format == FORMAT and BundleRecommender.load(bundle)


def test_export_refuses_a_bundle_with_files_of_the_user(bundle):
    (bundle / ".git").mkdir()
    (bundle / "CNAME").write_text("films.example")
    before = {path.name for path in bundle.iterdir()}
    fedtaste("export", run_of("fedals"), bundle).refused(".git, CNAME", "would be lost")
    assert {path.name for path in bundle.iterdir()} == before


def test_export_into_an_empty_folder_keeps_the_folder(tmp_path):
    (tmp_path / "here").mkdir()
    number = (tmp_path / "here").stat().st_ino
    export(run_of("fedals"), tmp_path / "here")
    assert (tmp_path / "here").stat().st_ino == number and BundleRecommender.load(tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["here"]


def test_a_pipe_in_a_bundle_is_refused(bundle):
    (bundle / "items.json").unlink()
    os.mkfifo(bundle / "items.json")
    with pytest.raises(RunError, match="no regular file"):
        BundleRecommender.load(bundle)


def test_export_of_a_method_without_a_recipe_is_refused(tmp_path):
    from fedtaste.data.sources import load
    from fedtaste.experiment.folder import RunFolder
    from fedtaste.experiment.settings import Settings
    from fedtaste.experiment.train import execute, prepare
    from support.bundles import DATA

    settings = Settings(data=DATA, method="fedper", set={"k": "8"}, rounds=1)
    folder = RunFolder.create(tmp_path / "run", settings.model_dump(), load(DATA), "0")
    execute(prepare(settings, load(DATA)), folder)
    with pytest.raises(SettingError, match=r"fedper cannot be exported.*fedals.*fedmf.*fedrap.*fedrecon.*fedtrail"):
        export(tmp_path / "run", tmp_path / "out")


def test_recommender_needs_no_torch():
    """A process that only serves should start fast."""
    code = (
        "import sys; from fedtaste.serving.bundle_recommender import BundleRecommender; "
        f"r = BundleRecommender.load({str(bundle_of('fedals'))!r}); "
        "r.recommend([r.bundle.titles[0]]); assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
