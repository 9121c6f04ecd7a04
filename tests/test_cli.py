"""The command line: exit codes, standard output and standard error, and the files that commands leave on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtaste.cli import main
from fedtaste.cli.options import COMMANDS
from fedtaste.cli.parser import load_function
from fedtaste.errors import RunError
from fedtaste.experiment.settings import Settings
from support.command import CONTRACT, QUICK, WORLD, fedtaste, no_network, without_times

pytestmark = pytest.mark.usefixtures("here")

FILE = ("--rounds", "2", "--threads", "1", "--set", "k=4", "--json")
ROWS = "".join(f"u{u},i{(u * 7 + j * 5) % 12},{1 + (u + j) % 5},{u * 10 + j}\n" for u in range(12) for j in range(5))
GOOD = "user,item,rating,timestamp\n" + ROWS


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """The folder of a finished run. Tests only read it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert fedtaste("run", *QUICK, "--out", path).code == 0
    return path


@pytest.fixture
def run_copy(finished_run) -> Path:
    """A copy of the finished run, without its plots, that a test may change."""
    Path("run").mkdir()
    for file in finished_run.glob("*.*"):
        Path("run", file.name).write_bytes(file.read_bytes())
    return Path("run")


# The JSON output


def test_run_prints_one_json_object_with_every_key_and_writes_a_complete_folder(real_plots):
    result = fedtaste("run", *QUICK, "--out", "mine").json
    assert result.keys() >= CONTRACT
    for group in ("seen", "new"):
        for protocol in ("sampled", "full"):
            assert result[group][protocol].keys() >= {"hr@10", "ndcg@10"}
            for name, (low, high) in result["intervals"][group][protocol].items():
                assert low <= result[group][protocol][name] <= high
    assert result["leak"].keys() >= {"memoriser_hr@10", "popularity_hr@10"}
    assert result["traffic"].keys() == {"up_bytes", "down_bytes", "up_bytes_per_person_round"}
    assert result["seconds"].keys() == {"setup", "train", "evaluate", "round", "train_cpu"}
    assert result["privacy"] is None and result["run"] == "mine" and result["people"] == 40
    names = {path.name for path in Path("mine").iterdir()}
    assert names >= {"settings.json", "items.json", "final.safetensors", "model.safetensors", "result.json"}
    assert "report.html" in names and not [name for name in names if name.endswith(".part")]
    assert json.loads(Path("mine/result.json").read_text()) == result


def test_every_run_gets_its_own_folder_and_the_table_names_the_next_commands():
    first, second = fedtaste("run", *QUICK).json["run"], fedtaste("run", *QUICK[:-1])
    assert first.endswith("-1") and second.code == 0
    assert "HR@10" in second.out and "Report: " in second.out and "fedtaste recommend" in second.out
    assert first.replace("-1", "-2") in second.out


@pytest.mark.parametrize("task, metric", [("ratings", "rmse"), ("regression", "rmse")])
def test_ratings_and_regression_report_rmse(task, metric):
    data = ["--data", "linear", "--method", "fedsgd"] if task == "regression" else [*WORLD, "--task", task]
    result = fedtaste("run", *data, "--rounds", "3", "--json").json
    assert result.keys() >= CONTRACT and result["task"] == task
    assert result["seen"][metric] > 0 and (result["new"] is None) == (task == "regression")
    if task == "regression":
        assert len(result["true_weights"]) == 5 and result["seen"]["weights_error"] > 0
        fedtaste("recommend", result["run"], "--likes", "x", "--json").refused("regression", "no items")


def test_a_split_supplied_by_the_user_is_used_with_its_titles():
    Path("mine").mkdir()
    rows = ROWS.splitlines()
    Path("mine/train.csv").write_text("user,item,rating,timestamp\n" + "\n".join(rows[0::5] + rows[1::5] + rows[2::5]))
    Path("mine/valid.csv").write_text("user,item,rating,timestamp\n" + "\n".join(rows[3::5]))
    Path("mine/test.csv").write_text("user,item,rating,timestamp\n" + "\n".join(rows[4::5]))
    titles = "".join(f'i{n},"Film {n}, The (199{n % 10})"\n' for n in range(12))
    Path("mine/items.csv").write_text("item,title\n" + titles)
    result = fedtaste("run", "--data", "mine", *FILE, "--out", "run").json
    assert (result["people"], result["items"]) == (12, 12)
    answer = fedtaste("recommend", "run", "--likes", "the film 3", "-n", "2", "--json").json
    assert answer["from"] == ["Film 3, The (1993)"] and len(answer["items"]) == 2


def test_compare_prints_results_and_writes_a_report():
    comparison = fedtaste("compare", "--methods", "popularity,fedals", *QUICK, "--out", "both").json
    assert [result["method"] for result in comparison["results"]] == ["popularity", "fedals"]
    assert all(result.keys() >= CONTRACT for result in comparison["results"])
    assert comparison["report"] == "both/report.html"
    assert Path("both/report.html").read_text().startswith("<!doctype html")
    assert fedtaste("report", "both", "--json").json == {"report": comparison["report"]}
    fedtaste("compare", "--methods", "fedals", *QUICK, "--out", "both").refused("both is there already", "--out")
    recommendation = fedtaste("recommend", comparison["results"][1]["run"], "--person", "7", "--json").json
    assert len(recommendation["items"]) == 10


def test_a_sweep_tries_every_value_once():
    comparison = fedtaste("compare", "--method", "fedals", "--sweep", "k=2, 4,2", *QUICK, "--out", "swept").json
    assert [result["settings"]["k"] for result in comparison["results"]] == [2, 4]


def test_the_same_command_gives_the_same_result():
    first, second = (without_times(fedtaste("run", *QUICK, "--out", name).json) for name in "ab")
    assert first == second
    assert Path("a/final.safetensors").read_bytes() == Path("b/final.safetensors").read_bytes()


# Options and settings that are wrong

OPTIONS = {
    "unknown method": (["--method", "fedal"], '"fedal" is not a method', 'Did you mean "fedals"?', "Methods: "),
    "unknown setting": (["--set", "lamm=1"], '"lamm" is not a setting', 'Did you mean "lam"?', "Settings: "),
    "unknown protocol": (["--protocol", "clan"], '"clan" is not a protocol', 'Did you mean "clean"?'),
    "unknown task": (["--task", "rating"], '"rating" is not a task', 'Did you mean "ratings"?'),
    "unknown backend": (["--backend", "kernal"], '"kernal" is not a backend', 'Did you mean "kernel"?'),
    "unknown split": (["--split", "tempral"], '"tempral" is not a split', 'Did you mean "temporal"?'),
    "unknown data": (["--data", "sinthetic"], '"sinthetic" is not a data set', 'mean "synthetic"?', "no such path"),
    "unknown server": (["--method", "fedavg", "--set", "server=adamm"], "adamm", 'Did you mean "adam"?'),
    "unknown option": (["--metod", "x"], "--metod", "--method", "--help"),
    "a size that is none": (["--data", "synthetic:huge"], '"huge" is not a size', "PEOPLExITEMSxINTERACTIONS"),
    "an impossible world": (["--data", "synthetic:5x5x500"], "cannot be made", "half of all pairs"),
    "an option as a setting": (["--set", "rounds=3"], '"rounds" is not a setting', "--rounds"),
    "another method's setting": (["--set", "mu=1"], '"mu" is not a setting of fedals; fedprox and fedrap have it.'),
    "a setting of many methods": (
        ["--method", "fedavg", "--set", "alpha0=1"],
        '"alpha0" is not a setting of fedavg; centralised, fedals, fedtrail and ', "more methods have it.",
    ),
    "a setting twice": (["--set", "k=4", "--set", "k=5"], "--set gives k twice: k=4 and k=5"),
    "a column twice": (["--columns", "user=a,user=b"], "--columns gives user twice: user=a and user=b"),
    "a wire that is empty": (["--wire", ""], "--wire is empty", "leave --wire out"),
    "a group of nan": (["--wire", "secure=nan"], "secure in --wire needs a group of 3 people or more", "secure=nan"),
    "a number that is none of the values": (
        ["--method", "fedseq", "--set", "bits=64"], '"64" is not a value of bits. Values of bits: 4, 8, 16, 32.',
    ),
    "a setting of popularity that it has not": (["--method", "popularity", "--set", "k=99"], "k would change nothing"),
    "a world that is too large": (["--data", "synthetic:999999999x999999999x9999999999"], "not fit into memory"),
    "a size of 5,000 digits": (["--data", "synthetic:" + "9" * 5000 + "x3x4"], "is not a size"),
    "a program as a method": (["--method", "os:system"], "os:system is no function that is written in Python"),
    "everybody drops out": (["--dropout", "1"], "--dropout must be a number from 0 to below 1, got 1"),
    "changes nothing": (["--set", "loss=bce"], "loss would change nothing", "Leave it out"),
    "changes nothing for this server": (
        ["--method", "fedavg", "--set", "server=sgd", "--set", "tau=0.1"], "tau would change nothing",
    ),
    "changes nothing for this solver": (["--method", "fedrecon", "--set", "lam=1"], "lam would change nothing"),
    "no key and value": (["--set", "k"], '"k"', "key=value"),
    "no value": (["--set", "k="], '"k="', "key=value"),
    "no key": (["--set", "=4"], '"=4"', "key=value"),
    "text for a whole number": (["--set", "k=many"], "k must be a whole number, got many", "--set k="),
    "a share for a whole number": (["--set", "k=2.5"], "k must be a whole number, got 2.5"),
    "text for a number": (["--set", "lam=big"], "lam must be a number, got big", "--set lam="),
    "text for yes or no": (["--method", "fedrecon", "--set", "joint=maybe"], "joint must be true or false, got maybe"),
    "not one of the words": (["--method", "fedrecon", "--set", "solver=exakt"], "not a value of solver", '"exact"'),
    "nan": (["--set", "lam=nan"], "lam must be a finite number, got nan"),
    "infinite": (["--set", "lam=inf"], "lam must be a finite number, got inf"),
    "a negative rate": (["--method", "fedavg", "--set", "lr=-0.1"], "lr must be at least 0, got -0.1"),
    "a share above 1": (["--set", "recency=1.5"], "recency must be from 0 to 1, got 1.5"),
    "no factors": (["--set", "k=0"], "k must be at least 1, got 0"),
    "k larger than items": (["--set", "k=41"], "k must be from 1 to 40", "got 41"),
    "no rounds": (["--rounds", "0"], "--rounds", "from 1 to 1000000, got 0"),
    "rounds below zero": (["--rounds", "-2"], "--rounds", "from 1 to 1000000, got -2"),
    "rounds in words": (["--rounds", "two"], "--rounds", "whole number", "got two"),
    "a cohort too large": (["--cohort", "1000"], "1000", "1 to 36", "0.1"),
    "a cohort of nobody": (["--cohort", "0"], "0", "1 to 36"),
    "a cohort below zero": (["--cohort", "-1"], "-1", "1 to 36"),
    "a cohort in words": (["--cohort", "some"], "--cohort", "0.1", "got some"),
    "a cohort of folds": (["--cohort", "folds"], "--cohort", "0.1", "got folds"),
    "a cohort of nan": (["--cohort", "nan"], "nan", "1 to 36"),
    "a cohort above all": (["--cohort", "1.5"], "1.5", "share"),
    "a cohort larger than a fold leaves": (["--cohort", "38", "--new-people", "folds"], "38", "1 to 36"),
    "a cohort of one place": (["--method", "centralised", "--cohort", "3"], "--cohort", "centralised", "Leave"),
    "new people above all": (["--new-people", "1.5"], "--new-people", "from 0 to below 1, or folds, got 1.5"),
    "everybody new": (["--new-people", "1"], "--new-people", "below 1", "got 1."),
    "almost everybody new": (["--new-people", "0.999"], "--new-people 0.999", "nobody", "smaller"),
    "new people in words": (["--new-people", "fold"], "--new-people", "folds, got fold."),
    "new people nan": (["--new-people", "nan"], "--new-people", "from 0", "got nan"),
    "drop-out above 1": (["--dropout", "2"], "--dropout", "from 0 to below 1, got 2"),
    "drop-out nan": (["--dropout", "nan"], "--dropout", "from 0 to below 1, got nan"),
    "tolerance below zero": (["--tolerance", "-1"], "--tolerance", "from 0 to 1, got -1"),
    "tolerance nan": (["--tolerance", "nan"], "--tolerance", "from 0 to 1, got nan"),
    "patience below zero": (["--patience", "-1"], "--patience", "from 0", "got -1"),
    "a seed below zero": (["--seed", "-1"], "--seed", "from 0", "got -1"),
    "a seed of 100 bits": (["--seed", str(2**100)], "--seed", "a whole number from 0", str(2**100)),
    "no threads": (["--threads", "0"], "--threads must be a whole number of at least 1, got 0"),
    "too many threads": (["--threads", "999"], "--threads must be from 1", "got 999"),
    "no such kernel": (["--method", "fedncf", "--set", "passes=2", "--backend", "kernel"], "kernel",
                       "this method has none", "vmap"),
    "a task that the data do not fit": (["--task", "regression"], "--task regression", "ranking or ratings"),
    "published ratings": (["--task", "ratings", "--protocol", "published"], "--protocol published", "ratings", "Leave"),
    "popularity of no items": (["--data", "linear", "--method", "popularity"], "popularity needs items", "local"),
    "ranking of no items": (["--data", "linear", "--task", "ranking"], "--task ranking", "regression"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options_are_refused_and_no_file_is_written(case):
    args, *parts = OPTIONS[case]
    fedtaste("run", *QUICK, *args).refused(*parts)
    assert not files()


@pytest.mark.parametrize(
    "args, parts",
    [
        ([], ["Say what to compare", "--methods"]),
        (["--methods", " , "], ["Say what to compare", "--methods"]),
        (["--methods", "fedals,fedavgg"], ['"fedavgg" is not a method', 'Did you mean "fedavg"?']),
        (["--methods", "fedals,fedavg", "--set", "lam=1"], ['"lam" is not a setting']),  # found before fedals runs
        (["--method", "fedals"], ["--sweep"]),
        (["--sweep", "k=2,4"], ["needs one method"]),
        (["--method", "fedals", "--sweep", "k"], ["needs one method and values"]),
        (["--method", "fedals", "--sweep", "k=,"], ["needs one method and values"]),
        (["--method", "fedals", "--sweep", "=2"], ["needs one method and values"]),
        (["--method", "fedals", "--sweep", "k=2,400"], ["k must be from 1 to 40", "got 400"]),
        (["--method", "fedals", "--sweep", "kk=2"], ['"kk" is not a setting', '"k"']),
    ],
)
def test_wrong_comparisons_are_refused_and_no_file_is_written(args, parts):
    fedtaste("compare", *QUICK, *args).refused(*parts)
    assert not files()


# Options from a file


def test_options_come_from_a_file_and_the_command_line_overrides_them():
    Path("run.toml").write_text(
        'data = "synthetic:40x40x400"\nthreads = 1\nrounds = 2\nnew_people = 0.2\njson = true\n'
        "[set]\nk = 3\nlam = 0.5\nrecency = 1\n"
    )
    from_file = without_times(fedtaste("run", "--config", "run.toml", "--set", "k=4", "--seed", "3", "--out", "a").json)
    options = ("--new-people", "0.2", "--set", "k=4", "--set", "lam=0.5", "--set", "recency=1", "--seed", "3")
    typed = without_times(fedtaste("run", *QUICK, *options, "--out", "b").json)
    assert from_file == typed and from_file["settings"]["k"] == 4 and from_file["seed"] == 3
    Path("compare.toml").write_text(
        'data = "synthetic:40x40x400"\nthreads = 1\nrounds = 1\nmethods = ["popularity", "fedals"]'
    )
    results = fedtaste("compare", "--config", "compare.toml", "--json").json["results"]
    assert [result["method"] for result in results] == ["popularity", "fedals"]


@pytest.mark.parametrize(
    "content, parts",
    [
        ("roudns = 2", ['"roudns" is not an option', 'Did you mean "rounds"?']),
        ("nodes = 2", ['"nodes" is not an option']),  # of another command
        ("rounds = 0", ["rounds must be a whole number from 1 to 1000000, got 0"]),
        ("rounds = true", ["rounds must be a whole number from 1 to 1000000", "got true"]),
        ('protocol = "clan"', ['"clan" is not a protocol', 'Did you mean "clean"?']),
        ("set = 3", ["set must be a table of settings"]),
        ("[set]\nlamm = 3", ['"lamm" is not a setting']),
        ("rounds = ", ["run.toml is not valid TOML"]),
        (None, ["run.toml cannot be read: no such file"]),
        (b"rounds = 2\n# \xe9\n", ["run.toml cannot be read: line 2 is not UTF-8"]),
    ],
)
def test_errors_in_an_option_file_name_the_file(content, parts):
    if content is not None:
        Path("run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files()
    output = fedtaste("run", *QUICK[:4], "--json", "--config", "run.toml").refused(*parts)
    assert "run.toml" in output.err or "[set]" in content
    assert files() == before


def test_every_setting_is_an_option_with_a_help_text():
    help_text = " ".join(fedtaste("run", "--help").out.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in help_text and " ".join(field.description.split())[:30] in help_text
    for name, command in COMMANDS.items():
        assert command.options.__doc__.startswith(main.COMMANDS[name]), "the list of commands differs from the help"
        assert callable(load_function(command.function))
        assert all(field.description for field in command.options.model_fields.values() if not field.is_required())


def test_without_a_command_the_help_is_shown():
    for args in ([], ["data"], ["--help"], ["run", "--help"]):
        output = fedtaste(*args)
        assert (output.code, output.err) == (0, "") and "Usage: " in output.out
    assert fedtaste("--version").out.startswith("fedtaste ")
    fedtaste("trian").refused("trian", "--help")


# Files that are wrong

BAD = {
    "empty": ("", "is empty", "user,item"),
    "header only": ("user,item\n", "has no rows", "one row per interaction"),
    "missing column": ("user,rating\na,1\n", "has no column item", "Got: user, rating", "Expected: user and item"),
    "misnamed column": ("user,itme\na,x\n", "has no column item", 'Is "itme" the item column?', "--columns item=itme"),
    "no header": ("1,2,3\n1,3,3\n", "has no column user", "first line"),
    "text for a rating": ("user,item,rating\na,x,4\na,y,good\n", "line 3", '"good" is not a number', "3.5"),
    "nan": ("user,item,rating\na,x,4\na,y,nan\n", "line 3", '"nan" is not a finite number', "remove the row"),
    "infinite": ("user,item,rating\na,x,inf\na,y,4\n", "line 2", '"inf" is not a finite number'),
    "too large": ("user,item,rating\na,x,3\na,y,1e308\n", "line 3", '"1e308" is too large', "below 3.4e+38"),
    "lines that end in CR": ("user,item\ra,x\rb,y\r", "end in CR alone", "LF"),
    "a time beyond all years": (
        "user,item,timestamp\na,x,0\na,y,1\nb,x,1e300\n", "timestamp, line 4", '"1e300" is no time', "1 to 9999",
    ),
    "text for a time": ("user,item,timestamp\na,x,1\na,y,noon\n", "line 3", '"noon" is not a time', "881250949"),
    "a gap": ("user,item\na,x\n,y\n", "line 3", "missing", "remove the row"),
    "a gap in ratings": ("user,item,rating\na,x,1\na,y,\n", "line 3", "missing", "Fill it in"),
    "one person": ("user,item\na,x\na,y\na,z\n", "1 person and 3 items", "at least 2 people", "Bring more data"),
    "one item": ("user,item\na,x\nb,x\nc,x\n", "3 people and 1 item", "2 items are needed"),
    "single interactions": ("user,item\na,x\nb,y\nc,z\n", "two interactions or more", "Bring longer histories"),
    "too many fields": ("user,item\na,x\na,y,z\n", "line 3", "3 fields", "quotes"),
    "binary": ("\0\1\2", "not a text file", "save it as CSV"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_wrong_data_files_are_refused_and_no_file_is_written(case):
    content, *parts = BAD[case]
    Path("mine.csv").write_text(content, newline="")
    before = files()
    fedtaste("run", "--data", "mine.csv", *FILE).refused("mine", *parts)
    fedtaste("compare", "--methods", "fedals,fedavg", "--data", "mine.csv", *FILE).refused("mine", *parts)
    if case not in ("one person", "one item", "single interactions"):
        fedtaste("data", "describe", "mine.csv", "--json").refused("mine", *parts)
        fedtaste("data", "import", "mine.csv", "mine.parquet").refused("mine", *parts)
    assert files() == before


@pytest.mark.parametrize(
    "data, parts",
    [
        ("gone.csv", ["gone.csv", "no such path exists"]),
        ("mine.xlsx", ["no known format", ".csv", ".parquet"]),
        ("folder", ["has no train.csv", "other.csv", "train.csv and test.csv"]),
        ("broken.parquet", ["not a Parquet file", "Write it again"]),
    ],
)
def test_paths_without_data_are_refused(data, parts):
    Path("folder").mkdir()
    for name in ("mine.xlsx", "folder/other.csv", "broken.parquet"):
        Path(name).write_text("user,item\n")
    before = files()
    fedtaste("run", "--data", data, *FILE).refused(*parts)
    assert files() == before


def test_the_ratings_task_needs_ratings():
    Path("mine.csv").write_text("user,item\n" + "".join(f"{r.rsplit(',', 2)[0]}\n" for r in ROWS.splitlines()))
    refusal = ("mine has no ratings", "rating column", "--task ranking")
    fedtaste("run", "--data", "mine.csv", "--task", "ratings", *FILE).refused(*refusal)
    result = fedtaste("run", "--data", "mine.csv", *FILE).json
    assert any("no time" in note for note in result["notes"])


@pytest.mark.parametrize("task", ["ranking", "ratings"])
def test_of_duplicate_pairs_the_newest_is_kept_and_a_note_says_so(task):
    Path("clean.csv").write_text(GOOD.replace("u1,i7,2,10\n", "u1,i7,5,9999\n"))
    Path("mine.csv").write_text(GOOD + "u1,i7,5,9999\n")
    clean, mine = (fedtaste("run", "--data", f"{name}.csv", "--task", task, *FILE).json for name in ("clean", "mine"))
    assert any("1 duplicate pair" in note for note in mine["notes"])
    assert mine["seen"] == clean["seen"] and mine["interactions"] == 60


@pytest.mark.parametrize("task", ["ranking", "ratings"])
@pytest.mark.parametrize("method", ["fedals", "fedavg", "fedrecon", "local"])
def test_people_with_a_single_interaction_take_part(task, method):
    Path("mine.csv").write_text(GOOD + "lonely,i3,4,1\n")
    result = fedtaste("run", "--data", "mine.csv", "--task", task, "--method", method, *FILE, "--out", "run").json
    assert result["people"] == 13 and result["seen"]["people"] + result["new"]["people"] == 12
    if task == "ranking":
        assert any("1 person" in note for note in result["notes"]), result["notes"]
    answer = fedtaste("recommend", "run", "--person", "lonely", "-n", "3", "--json").json
    assert answer["from"] == ["i3"] and "i3" not in [item["item"] for item in answer["items"]]


@pytest.mark.parametrize("parts", ["trail", "factors", "trail+factors", "trail+als"])
def test_fedtrail_serves_people_with_an_order_and_without(parts):
    timed = GOOD + "lonely,i3,4,1\n"
    Path("timed.csv").write_text(timed)
    Path("bare.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in timed.splitlines()))
    k = () if parts == "trail" else ("--set", "k=4")
    for name in ("timed", "bare"):
        args = ("--data", f"{name}.csv", "--method", "fedtrail", "--set", f"parts={parts}", *k, "--threads", "1")
        result = fedtaste("run", *args, "--json", "--out", name).json
        assert ("Recency is off: the data have no time." in result["notes"]) == (name == "bare")
        assert result["rounds"] == 1 or parts == "trail+als"
        answer = fedtaste("recommend", name, "--person", "lonely", "-n", "3", "--json").json
        assert answer["from"] == ["i3"] and "i3" not in [item["item"] for item in answer["items"]]
        likes = fedtaste("recommend", name, "--likes", "i3", "--likes", "i8", "-n", "10", "--json").json["items"]
        assert len({item["score"] for item in likes}) > 1
    fedtaste("run", *args, "--task", "ratings").refused("fedtrail ranks with model=factorization", "use fedals")


FEDRAP = ("--method", "fedrap", "--set", "k=4", "--set", "table_lr=10", "--set", "passes=2", "--threads", "1")


def test_fedrap_on_disk_and_with_small_downloads_is_the_same_run():
    Path("some.csv").write_text(GOOD)
    base = ("run", "--data", "some.csv", *FEDRAP, "--rounds", "4", "--set", "prox=1.0", "--json", "--out")
    in_memory = fedtaste(*base, "memory").json
    on_disk = fedtaste(*base, "disk", "--store", "disk", "--download", "sparse").json
    assert in_memory["seen"] == on_disk["seen"] and in_memory["new"] == on_disk["new"]
    assert on_disk["curve"][-1]["down_bytes"] < in_memory["curve"][-1]["down_bytes"]
    assert [p["loss"] for p in in_memory["curve"]] == [p["loss"] for p in on_disk["curve"]]
    assert 0 < on_disk["curve"][-1]["zeros"] <= 1 and list(Path("disk/private").iterdir()) == []
    assert fedtaste("recommend", "disk", "--likes", "i3", "-n", "3", "--json").json["items"]


def test_fedrap_under_the_published_protocol_reports_the_leak():
    args = ("--data", "synthetic:200x150x3000", "--protocol", "published", "--rounds", "6", "--json")
    result = fedtaste("run", *FEDRAP, *args).json
    leak = result["leak"]
    assert leak["memoriser_curve"][0][0] == 1 and {"memoriser_hr@10", "popularity_hr@10", "leaks"} <= leak.keys()
    assert all(point["loss"] is not None for point in result["curve"])


@pytest.mark.parametrize(
    "args, parts",
    [
        (("--set", "schedule=tan"), ["not a value of schedule", 'Did you mean "tanh"']),
        (("--set", "penalty=l11"), ["not a value of penalty", 'Did you mean "l1"']),
        (("--set", "lam=1e9"), ["round 3", "lam of fedrap"]),
        (("--set", "released=true", "--set", "weight_decay=1"), ["below 1"]),
        (("--set", "released=false", "--set", "step_decay=0.5"), ["step_decay would change nothing"]),
        (("--set", "parts=own", "--set", "mu=1"), ["parts=own has no common table"]),
        (("--task", "ratings"), ["fedrap ranks"]),
        (("--store", "dusk"), ['"dusk" is not a store', 'Did you mean "disk"', "memory"]),
        (("--download", "zip"), ['"zip" is not a download', "sparse"]),
    ],
)
def test_settings_that_fedrap_cannot_use_are_refused(args, parts):
    Path("some.csv").write_text(GOOD)
    fedtaste("run", "--data", "some.csv", *FEDRAP, "--rounds", "5", *args).refused(*parts)
    assert not list(Path(".").rglob("*.part"))


def test_options_that_a_run_would_not_read_are_refused():
    Path("some.csv").write_text(GOOD)
    fedtaste("run", "--data", "some.csv", "--store", "disk").refused("--store disk would change nothing", "fedals")
    args = ("run", "--data", "some.csv", "--method", "local", "--set", "k=4", "--download", "int8")
    fedtaste(*args).refused("--download int8 would change nothing", "local")


def test_data_without_items_to_rank_against_are_refused():
    Path("full.csv").write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u in range(4) for i in range(5)))
    fedtaste("run", "--data", "full.csv", *FEDRAP).refused(
        "4 people can be evaluated", "5 items untouched", "larger catalogue"
    )
    Path("some.csv").write_text("user,item\na,x\na,y\nb,x\nc,y\n")  # b and c have a single item, so a alone counts
    fedtaste("run", "--data", "some.csv", *FEDRAP).refused("1 person can be evaluated", "2 items untouched")
    Path("one.csv").write_text("user,item\na,x\na,y\na,z\n")
    fedtaste("run", "--data", "one.csv", *FEDRAP).refused("1 person", "Bring more data")


# Fetching


def test_without_a_network_the_error_says_how_to_get_the_data():
    refusal = ("ml-100k cannot be fetched", "no answer (offline)", "GroupLens", "by hand", "--data synthetic")
    fedtaste("run", "--rounds", "1", "--json").refused(*refusal)
    fedtaste("data", "fetch", "ml-100k").refused("cannot be fetched", "--data synthetic")
    assert not files()


def test_a_damaged_file_in_the_cache_is_refused():
    Path("cache").mkdir()
    Path("cache/ml-100k.zip").write_bytes(b"PK, but not the one")
    before = files()
    fedtaste("run", "--json").refused("is damaged", "sha256", "expected 50d2a982", "ml-100k.zip into", "by hand")
    assert files() == before


def test_a_download_with_another_hash_is_not_kept(monkeypatch):
    no_network(monkeypatch, b"PK, but not the one")
    fedtaste("data", "fetch", "ml-100k").refused("sent another file", "sha256", "Nothing was kept", "Try again")
    assert not files()


# Folders


def test_a_folder_that_cannot_be_created_is_refused(here):
    Path("file").write_text("")
    before = files()
    fedtaste("run", *QUICK, "--out", "file/run").refused("file/run cannot be made", "--out")
    fedtaste("run", *QUICK, "--out", "file").refused("file cannot be made", "--out")
    fedtaste("compare", "--methods", "fedals", *QUICK, "--out", "file/both").refused("file/both", "--out")
    assert files() == before


def test_a_folder_that_holds_a_run_is_not_overwritten(run_copy):
    before = {path: path.read_bytes() for path in run_copy.iterdir()}
    fedtaste("run", *QUICK, "--out", run_copy).refused("holds a run already", f"fedtaste resume {run_copy}", "--out")
    assert {path: path.read_bytes() for path in run_copy.iterdir()} == before


def commands(path):
    """The commands that read a run folder; the first one also continues it."""
    return (["resume", path], ["report", path], ["recommend", path, "--person", "1"])


@pytest.mark.parametrize("name", ["gone", "empty", "file"])
def test_a_folder_without_a_run_is_refused(name):
    Path("empty").mkdir()
    Path("file").write_text("")
    for command in commands(name):
        fedtaste(*command, "--json").refused(f"{name} is not a run folder", "settings.json", "fedtaste run")


@pytest.mark.parametrize(
    "file, content, parts",
    [
        ("settings.json", '{"format": "fedtaste-run-9", "version": "9.0"}', ["written by fedtaste 9.0", "run again"]),
        ("settings.json", "{}", ["does not read", "run again"]),
        ("settings.json", '{"format": "fedtaste-run-1", "version": "0"}', ["settings.json", "run again"]),
        ("settings.json", "", ["settings.json cannot be read", "run again"]),
        ("settings.json", "[1]", ["settings.json cannot be read", "run again"]),
        ("settings.json", '{"form', ["settings.json cannot be read", "run again"]),
        ("settings.json", '{"format": "fedtaste-run-1", "settings": {"colour": 1}}', ["settings.json", "run again"]),
        ("result.json", '{"data": "syn', ["result.json cannot be read", "run again"]),
        ("result.json", "\x00\xff", ["result.json cannot be read", "run again"]),
    ],
)  # fmt: skip
def test_damaged_run_folders_and_those_of_another_version_are_refused(run_copy, file, content, parts):
    (run_copy / file).write_text(content, encoding="latin-1")
    before = files()
    for command in commands(run_copy):
        fedtaste(*command, "--json").refused(*parts)
    assert files() == before


@pytest.mark.parametrize("file", ["state.safetensors", "final.safetensors"])
@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-7], lambda b: b"\xff" * 64, lambda b: b[:99]])
def test_damaged_weights_are_refused_and_left_as_they_are(run_copy, file, damage):
    (run_copy / "result.json").unlink()
    path = run_copy / file
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    fedtaste("resume", run_copy, "--json").refused(file, "cannot be read as weights", "run again")
    assert path.read_bytes() == before


def test_missing_weights_and_weights_of_another_run_are_refused(run_copy):
    (run_copy / "model.safetensors").unlink()
    fedtaste("recommend", run_copy, "--likes", "1", "--json").refused("model.safetensors", "fedtaste run")
    fedtaste("run", *QUICK, "--set", "k=3", "--out", "other")
    (run_copy / "model.safetensors").write_bytes(Path("other/model.safetensors").read_bytes())
    fedtaste("recommend", run_copy, "--person", "1", "--json").refused("belongs to another run")


def test_a_damaged_list_of_a_comparison_is_refused():
    fedtaste("compare", "--methods", "fedals", *QUICK, "--out", "both")
    Path("both/compare.json").write_text("{")
    fedtaste("report", "both", "--json").refused("compare.json cannot be read")


def test_an_unfinished_run_can_only_be_resumed(run_copy):
    (run_copy / "result.json").unlink()
    for command in commands(run_copy)[1:]:
        fedtaste(*command, "--json").refused("has no result.json", f"fedtaste resume {run_copy}")
    assert fedtaste("resume", run_copy, "--json").json["people"] == 40
    assert fedtaste("report", run_copy, "--json").json == {"report": f"{run_copy}/report.html"}


def test_a_run_of_another_version_is_readable_but_not_resumed(run_copy):
    settings_file = json.loads((run_copy / "settings.json").read_text())
    (run_copy / "settings.json").write_text(json.dumps(settings_file | {"version": "0.0.0"}))
    assert fedtaste("report", run_copy, "--json").code == 0  # a finished run can still be read
    (run_copy / "result.json").unlink()
    fedtaste("resume", run_copy, "--json").refused("begun by fedtaste 0.0.0", "Use that version, or run again")


def test_resuming_a_finished_run_prints_its_result_and_changes_nothing(run_copy):
    before = {path: path.read_bytes() for path in run_copy.iterdir()}
    output = fedtaste("resume", run_copy, "--json")
    assert output.json == json.loads((run_copy / "result.json").read_text()) and "had finished already" in output.err
    assert {path: path.read_bytes() for path in run_copy.iterdir()} == before


def test_resume_writes_a_missing_report(run_copy):
    (run_copy / "report.html").unlink()
    assert fedtaste("resume", run_copy, "--json").json["run"] == str(run_copy)
    assert (run_copy / "report.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "u1,i9,3,500\n",
        lambda text: text.replace("u1,i7,2,10", "u1,i7,3,10"),
        lambda text: text.replace("u1,i7,2,10", "u1,i7,2,11"),
        lambda text: text.replace("u11,", "u99,"),
        lambda text: text.replace(",i11,", ",i99,"),
    ],
)  # fmt: skip
def test_a_run_does_not_continue_on_changed_data(change):
    Path("mine.csv").write_text(GOOD)
    fedtaste("run", "--data", "mine.csv", *FILE, "--out", "run")
    Path("run/result.json").rename("kept")
    changed = change(GOOD)
    assert changed != GOOD
    Path("mine.csv").write_text(changed)
    fedtaste("resume", "run", "--json").refused("data have changed", "Restore the data, or run again")
    Path("kept").rename("run/result.json")
    answer = fedtaste("recommend", "run", "--person", "u1", "-n", "1", "--json")  # from what the file holds now
    assert len(answer.json["items"]) == 1


# Recommendations


def test_recommendations_are_new_to_the_person_and_repeatable(finished_run):
    titles = json.loads((finished_run / "items.json").read_text())["titles"]
    args = ("recommend", finished_run, "--likes", titles[3], "--likes", titles[8], "--json")
    output = fedtaste(*args)
    answer = output.json
    assert fedtaste(*args) == output
    assert answer["from"] == [titles[3], titles[8]] and len(answer["items"]) == 10
    recommended = [item["title"] for item in answer["items"]]
    assert len(set(recommended)) == 10 and not {titles[3], titles[8]} & set(recommended)
    scores = [item["score"] for item in answer["items"]]
    assert scores == sorted(scores, reverse=True)
    assert all(item.keys() == {"item", "title", "score"} for item in answer["items"])
    table = fedtaste(*args[:-1]).out
    assert all(title in table for title in recommended[:5])


def test_titles_are_matched_without_case_article_or_year():
    Path("mine.csv").write_text(
        "user,item,title\n"
        + "".join(f'{u},{i},"{t}"\n' for u in "abcd" for i, t in enumerate(TITLES) if i != "abcd".index(u))
    )
    fedtaste("run", "--data", "mine.csv", "--rounds", "1", "--set", "k=2", "--threads", "1", "--out", "run")
    for typed, title in {
        "Lion King, The (1994)": TITLES[0],
        "Lion King, The": TITLES[0],
        "The Lion King": TITLES[0],
        "the  LION king (1994)": TITLES[0],
        "lion king": TITLES[0],
        "star wars": TITLES[1],
        "4": TITLES[4],
        "[brackets] [/red]": TITLES[3],
    }.items():
        assert fedtaste("recommend", "run", "--likes", typed, "-n", "2", "--json").json["from"] == [title]
    twice = ("--likes", "Star Wars", "--likes", "star wars (1977)")
    assert fedtaste("recommend", "run", *twice, "-n", "1", "--json").json["from"] == [TITLES[1]]
    output = fedtaste("recommend", "run", "--likes", TITLES[3], "-n", "4")
    assert output.code == 0 and f"Because of {TITLES[3]}" in output.out
    assert TITLES[3] in fedtaste("recommend", "run", "--likes", "star wars", "-n", "4").out
    for typed, *parts in (
        ("Star Warts", '"Star Warts"', 'Did you mean "Star Wars (1977)"'),
        ("Lion", "Did you mean", "Lion King, The (1994)"),
        ("Qqqq", '"Qqqq" is not in the catalogue of 5 items', "Give a title"),
    ):
        fedtaste("recommend", "run", "--likes", typed, "--json").refused(*parts)


TITLES = ("Lion King, The (1994)", "Star Wars (1977)", "Alien (1979)", "[brackets] [/red]", "Amélie (2001)")


def test_more_items_than_are_left_are_all_that_are_left(finished_run):
    assert len(fedtaste("recommend", finished_run, "--likes", "1", "-n", "41", "--json").json["items"]) == 39


def test_a_wrong_line_of_a_list_is_named_and_hardly_repeated(finished_run):
    Path("secret").write_text("1\n\nroot:$6$abcdefghijklmnop:19000::\n")
    output = fedtaste("recommend", finished_run, "--likes", "1", "--only", "@secret", "--json")
    output.refused("only", "line 3 of secret", "root:$6$abc")
    assert "defghijk" not in output.err


def test_recommend_reads_likes_from_a_file(finished_run):
    items = json.loads((finished_run / "items.json").read_text())
    Path("me.csv").write_text("title,timestamp\n" + "".join(f'"{items["titles"][n]}",{n}\n' for n in (5, 2, 9)))
    answer = fedtaste("recommend", finished_run, "--from", "me.csv", "--json").json
    assert answer["from"] == [items["titles"][n] for n in (2, 5, 9)] and len(answer["items"]) == 10
    Path("me.csv").write_text("item\n3\n4\n")
    assert len(fedtaste("recommend", finished_run, "--from", "me.csv", "--json").json["from"]) == 2
    for content, part in (("", "is empty"), ("title\n", "no rows"), ("name\nx\n", "no column"), ("item\n99\n", '"99"')):
        Path("me.csv").write_text(content)
        fedtaste("recommend", finished_run, "--from", "me.csv", "--json").refused(part)
    fedtaste("recommend", finished_run, "--from", "gone.csv", "--json").refused("gone.csv", "Check the path")


def test_recommend_reads_low_ratings_of_a_file_as_dislikes(finished_run):
    titles = json.loads((finished_run / "items.json").read_text())["titles"]
    rows = [(5, 4.5), (2, 0.5), (9, 2.5), (7, 2), (8, 0)]
    Path("me.csv").write_text("title,rating\n" + "".join(f'"{titles[n]}",{rating}\n' for n, rating in rows))
    answer = fedtaste("recommend", finished_run, "--from", "me.csv", "--json", "-n", len(titles) - 4).json
    assert (answer["from"], answer["disliked"]) == ([titles[5], titles[9]], [titles[2], titles[7]])
    assert answer["rating_rule"].startswith("Ratings from 0 to 5: from 2.5 on a like, below that a dislike")
    listed = {item["title"] for item in answer["items"]}
    assert titles[8] in listed and not listed & {titles[n] for n in (2, 5, 7, 9)}
    Path("likes.csv").write_text(f'title\n"{titles[5]}"\n"{titles[9]}"\n')
    plain = fedtaste("recommend", finished_run, "--from", "likes.csv", "--json").json
    assert "rating_rule" not in plain
    assert [i for i in plain["items"] if i["title"] not in answer["disliked"]][:6] == answer["items"][:6]
    assert "below that a dislike" in fedtaste("recommend", finished_run, "--from", "me.csv").out
    for low, high, part in ((0.5, 2, "nothing that the person likes"), (-1, 3, "got -1"), (3, 500, "got 500")):
        Path("me.csv").write_text(f'title,rating\n"{titles[0]}",{low}\n"{titles[1]}",{high}\n')
        fedtaste("recommend", finished_run, "--from", "me.csv", "--json").refused(part)


@pytest.mark.parametrize(
    "args, parts",
    [
        ([], ["Say for whom", "--likes", "--person", "--from", "--all"]),
        (["--likes", "1", "--person", "1"], ["in one way, got 2", "--likes", "or --all"]),
        (["--person", "1", "--from", "x.csv"], ["in one way, got 2", "--likes", "or --all"]),
        (["--person", "nobody"], ['"nobody" is not a person of synthetic:40x40x400', '"1" to "40"']),
        (["--person", "33x"], ['"33x" is not a person', 'Did you mean "33"?']),
        (["--likes", "1", "-n", "0"], ["n must be", "at least 1", "got 0"]),
        (["--likes", "1", "-n", "-3"], ["n must be", "at least 1", "got -3"]),
        (["--likes", "1", "-n", "ten"], ["ten", "whole number"]),
        (["--likes", ""], ['""', "catalogue of 40 items"]),
    ],
)
def test_wrong_options_of_recommend_are_refused(finished_run, args, parts):
    fedtaste("recommend", finished_run, *args, "--json").refused(*parts)


@pytest.mark.parametrize("method", ["popularity", "local", "centralised", "fedavg", "fedper", "fedrep", "fedrecon"])
@pytest.mark.parametrize("task", ["ranking", "ratings"])
def test_every_method_recommends(method, task):
    fedtaste("run", *QUICK, "--method", method, "--task", task, "--out", "run").json  # noqa: B018 (it checks)
    for who in (["--person", "3"], ["--likes", "3", "--likes", "5"]):
        answer = fedtaste("recommend", "run", *who, "--json").json
        assert len(answer["items"]) == 10 and not {item["title"] for item in answer["items"]} & set(answer["from"])


# Data


def test_data_list_describe_and_fetch():
    listed = fedtaste("data", "list")
    assert listed.code == 0 and all(name in listed.out for name in ("ml-100k", "synthetic", "linear"))
    rows = json.loads(fedtaste("data", "list", "--json").out)
    assert {"ml-100k", "synthetic", "linear"} <= {row["name"] for row in rows}
    assert fedtaste("data", "describe", "synthetic:40x40x400", "--json").json["interactions"] == 400
    assert fedtaste("data", "describe", "linear", "--json").json["clients"] == 10
    assert "synthetic is ready" in fedtaste("data", "fetch", "synthetic").out.replace(":600x400x24000", "")
    fedtaste("data", "describe", "ml-10k", "--json").refused('"ml-10k" is not a data set', 'Did you mean "ml-100k"?')
    fedtaste("data", "fetch", "ml-1000k").refused("is not a data set")
    fedtaste("data", "remove").refused("remove")


@pytest.mark.parametrize("name", ["amazon-video", "tafeng", "qb-article"])
def test_data_sets_to_download_by_hand_say_where_to_put_them(name):
    for command in (["data", "fetch", name], ["data", "describe", name], ["run", "--data", name]):
        fedtaste(*command).refused(f"{name} must be downloaded by hand", "https://", str(Path("cache").resolve()))


def test_a_data_set_downloaded_by_hand_is_compared_with_its_expected_size():
    Path("cache").mkdir()
    rows = "".join(f"A{person},B{item},4.0,{item}\n" for person in range(3) for item in range(8 + person))
    Path("cache/ratings_Amazon_Instant_Video.csv").write_text(rows)
    assert "got 1 x 10 x 10, expected 1,372 x 7,957 x 23,181" in fedtaste(
        "data", "describe", "amazon-video"
    ).out.replace("\n", " ")
    assert "expected 1,372" in fedtaste("data", "fetch", "amazon-video").err


def test_a_file_is_not_imported_over_itself():
    Path("mine.csv").write_text(GOOD)
    Path("again.csv").symlink_to("mine.csv")
    for target in ("mine.csv", "./mine.csv", "again.csv"):
        for force in ((), ("--force",)):
            refused = fedtaste("data", "import", "mine.csv", target, *force)
            refused.refused(f"{Path(target)} belongs to the data", "Choose another TARGET")
    assert Path("mine.csv").read_text() == GOOD


def test_an_import_replaces_a_file_with_force_only():
    Path("data").mkdir()
    Path("data/mine.csv").write_text(GOOD)
    Path("out.csv").write_text("mine")
    fedtaste("data", "import", "data/mine.csv", "out.csv").refused("out.csv exists already", "TARGET", "--force")
    assert Path("out.csv").read_text() == "mine"
    assert fedtaste("data", "import", "data/mine.csv", "out.csv", "--force").code == 0
    people = [fedtaste("data", "describe", name, "--json").json["people"] for name in ("out.csv", "data/mine.csv")]
    assert people == [12, 12]


def test_default_folders_have_plain_names_and_commands_are_quoted():
    name = "my ok\x1b[31mred\x1b[0m;é.csv"
    Path(name).write_text(GOOD)
    run = fedtaste("run", "--data", name, *FILE[:-1])
    plain = "my-ok--31mred--0m--"
    assert f"Next: fedtaste recommend runs/{plain}-fedals-1 --likes TITLE\n" in run.out
    fedtaste("fit", "--data", name, *FILE)
    fedtaste("compare", "--methods", "popularity", "--data", name, "--threads", "1", "--json")
    folders = {f"{plain}-fedals-1", f"model-{plain}-fedals-1", f"{plain}-compare-1"}
    assert {path.name for path in Path("runs").iterdir()} == folders
    fit = fedtaste("fit", "--data", name, *FILE[:-1], "--out", "my shop")
    assert "Next: fedtaste recommend 'my shop' --all --out recommendations.parquet\n" in fit.out
    again = fedtaste("fit", "--data", name, *FILE, "--out", "my shop")
    again.refused("`fedtaste resume 'my shop'` continues")
    assert "Look at it: fedtaste serve 'my page'\n" in fedtaste("export", "my shop", "my page").out
    assert "Use it: fedtaste run --data 'my out.csv'\n" in fedtaste("data", "import", name, "my out.csv").out


@pytest.mark.parametrize("target", ["out.parquet", "out.csv", "out.csv.gz"])
def test_an_imported_file_gives_the_same_results(target):
    Path("mine.csv").write_text(GOOD)
    output = fedtaste("data", "import", "mine.csv", target)
    assert output.code == 0 and f"fedtaste run --data {target}" in output.out
    original, imported = (fedtaste("data", "describe", name, "--json").json for name in ("mine.csv", target))
    assert {**original, "name": ""} == {**imported, "name": ""}
    results = [fedtaste("run", "--data", name, *FILE).json for name in ("mine.csv", target)]
    assert results[0]["seen"] == results[1]["seen"]


def test_wrong_imports_are_refused_and_no_file_is_written():
    Path("mine.csv").write_text(GOOD)
    before = files()
    fedtaste("data", "import", "mine.csv", "out.xlsx").refused("out.xlsx", ".parquet, .csv or .csv.gz")
    fedtaste("data", "import", "mine.csv", "mine.csv/out.csv").refused("mine.csv/out.csv cannot be written", "Choose")
    fedtaste("data", "import", "gone.csv", "out.csv").refused("gone.csv cannot be read", "Check the path")
    assert files() == before


# Random values of options

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
NAMES = ("k", "lam", "recency", "alpha0", "floor", "loss", "lr", "passes", "server", "server_lr", "private", "")
PAIRS = st.builds("{}={}".format, st.sampled_from(NAMES), TEXT | st.integers().map(str) | st.floats().map(str))
NUMBERS = st.integers().map(str) | st.floats().map(str) | TEXT
TYPED = st.one_of(
    st.tuples(st.just("--set"), PAIRS | TEXT),
    st.tuples(st.just("--cohort"), NUMBERS),
    st.tuples(st.just("--new-people"), NUMBERS),
    st.tuples(st.sampled_from(["--rounds", "--seed", "--threads", "--tolerance", "--patience", "--dropout"]), NUMBERS),
    st.tuples(st.sampled_from(["--method", "--protocol", "--split", "--task", "--backend", "--data"]), TEXT),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TYPED, min_size=1, max_size=2), st.sampled_from(["fedals", "fedavg", "fedrecon"]))
def test_any_option_value_is_accepted_or_refused_before_training(typed, method):
    """Every error must be raised before the run folder is created; accepted values stop there with their own error."""

    def begin(*_):
        raise RunError("accepted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtaste.cli.run.create_folder", begin)
        options = [f"{name}={value}" for name, value in typed]
        fedtaste("run", *QUICK, "--method", method, *options).refused()
    assert not files()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, st.sampled_from(["--likes", "--person", "--from", "-n"]))
def test_any_option_value_of_recommend_is_answered_or_refused(finished_run, text, option):
    options = [f"{option}={text}" if option != "-n" else f"-n{text}"] + (["--likes=1"] if option == "-n" else [])
    output = fedtaste("recommend", finished_run, *options, "--json")
    output.refused() if output.code else output.json  # noqa: B018 (it checks)


# A separate process


def test_the_command_works_in_its_own_process(here):
    def call(*args, **options):
        command = [sys.executable, "-m", "fedtaste", *args]
        return subprocess.run(command, capture_output=True, text=True, cwd=here, timeout=120, **options)

    output = call("run", *QUICK, "--out", "run")
    assert output.returncode == 0 and json.loads(output.stdout).keys() >= CONTRACT and "Traceback" not in output.stderr
    output = call("run", *QUICK, "--set", "k=400", env={**os.environ, "COLUMNS": "40"})
    assert (output.returncode, output.stdout) == (2, "") and output.stderr.count("\n") == 1
    assert "k must be from 1 to 40" in output.stderr
