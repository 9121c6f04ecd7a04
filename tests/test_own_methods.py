"""Methods of the user's own: named module:function on the command line, or given as a function in Python.

Nothing is imported because a run folder names a module.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import fedtaste
from fedtaste.cli.own_methods import allow_method
from fedtaste.core import Method, Model
from fedtaste.errors import SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.methods import METHODS, find_method, known_method, name_method
from fedtaste.methods.own import OWN
from fedtaste.methods.registry import define
from fedtaste.tasks.base import Facts
from support.command import fedtaste as command
from support.flower_worlds import federation_in_process, serve_to_the_end

DATA = "synthetic:60x40x900"
MODULE = """
import sys
from fedtaste import fedavg
from fedtaste.methods.registry import define

IMPORTS = sys.modules.setdefault("imports_of_mine", [])
IMPORTS.append(1)

def plain(model, *, lr=1.0, passes: int = 1):
    return fedavg(model, lr=lr, passes=passes)

@define(defaults={"ranking": {"rounds": 3, "lr": 0.5}})
def defined(model, *, lr: float = 1.0):
    return fedavg(model, lr=lr)

def nothing(model): ...
def raises(model): raise ValueError("oh no")
def leaves(model): raise SystemExit(3)
def of_text(name: str): ...
class Refuses:
    def method(self): ...
def no_model(*, lr: float = 1.0): ...
def positional(model, lr): ...
def no_default(model, *, lr: float): ...
number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with mine.py, which is the current one; the process forgets the module at the end."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # the command adds to it
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in ("mine", "imports_of_mine"):
        sys.modules.pop(name, None)
    OWN.clear()


def run(*options: object, out: object = "run") -> dict:
    return command("run", "--data", DATA, "--rounds", 2, "--json", "--out", out, *options).json


def test_a_comparison_imports_only_methods_that_the_user_names_again(mine):
    options = ("--data", DATA, "--rounds", 2, "--methods", "mine:plain,fedavg", "--out", "both", "--json")
    whole = command("compare", *options).json
    shutil.rmtree("both/mine-plain")
    forget()
    command("resume", "both", "--json").refused("mine:plain", "--method")
    assert "mine" not in sys.modules
    command("resume", "both", "--method", "mine:other", "--json").refused("--method must be one of mine:plain, fedavg")
    assert "mine" not in sys.modules
    again = command("resume", "both", "--method", "mine:plain", "--json").json
    assert [result["seen"] for result in again["results"]] == [result["seen"] for result in whole["results"]]


def test_a_function_is_run_compared_and_audited(mine):
    result = run("--method", "mine:plain", "--set", "lr=5", "--set", "passes=2")
    assert result["method"] == "mine:plain" and result["settings"]["lr"] == 5.0 and result["settings"]["passes"] == 2
    fedavg = run("--method", "fedavg", "--set", "lr=5", "--set", "passes=2", out="fedavg")
    assert result["seen"] == fedavg["seen"]
    options = ("--data", DATA, "--rounds", 2, "--json", "--set", "lr=5")
    for jobs in (1, 2):  # in this process, and in processes of their own
        runs = command("compare", *options, "--methods", "mine:plain,fedavg", "--out", f"both-{jobs}", "--jobs", jobs)
        first, second = runs.json["results"]
        assert first["method"] == "mine:plain" and first["seen"] == second["seen"]
    audit = command("audit", "--data", DATA, "--method", "mine:plain", "--set", "lr=5", "--canaries", 0, "--json")
    assert audit.json["method"] == "mine:plain"


@pytest.mark.parametrize("first", [True, False], ids=["python -m fedtaste", "fedtaste"])
@pytest.mark.parametrize("inherited", ["", "."])
def test_processes_that_work_elsewhere_find_the_module(mine, monkeypatch, first, inherited):
    """As the processes of a federation: they inherit the environment and have folders of their own."""
    monkeypatch.setenv("PYTHONPATH", inherited)
    if first:
        monkeypatch.setattr(sys, "path", [str(mine), *sys.path])
    allow_method("mine:plain")
    (mine / "elsewhere").mkdir()
    search = "import importlib.util; print(importlib.util.find_spec('mine').origin)"
    answer = subprocess.run([sys.executable, "-c", search], cwd=mine / "elsewhere", capture_output=True, text=True)
    assert answer.stdout.strip() == str(mine / "mine.py"), answer.stderr


def test_a_folder_imports_nothing_until_the_user_names_the_method_again(mine):
    run("--method", "mine:plain")
    forget()
    title = json.loads((mine / "run" / "items.json").read_text())["titles"][0]
    likes = ("--likes", title, "-n", 3, "--json")
    command("recommend", "run", *likes).refused("mine:plain", "--method mine:plain")
    command("export", "run", "site").refused("--method mine:plain")
    (mine / "run" / "result.json").rename(mine / "result.json")
    command("resume", "run").refused("--method mine:plain")
    (mine / "result.json").rename(mine / "run" / "result.json")
    assert "imports_of_mine" not in sys.modules
    command("recommend", "run", *likes, "--method", "mine:defined").refused("must be mine:plain")
    assert "imports_of_mine" not in sys.modules
    assert len(command("recommend", "run", *likes, "--method", "mine:plain").json["items"]) == 3


def test_printed_commands_name_the_method_and_run_as_printed(mine, monkeypatch):
    def typed(output, before):
        words = shlex.split(re.search(rf"{before}`?(fedtaste [^`\n]+)", output.out + output.err)[1])
        forget()
        return command(*(title if word == "TITLE" else word for word in words[1:]))

    options = ("--data", DATA, "--method", "mine:plain", "--rounds", 2)
    done = command("run", *options, "--out", "run")
    title = json.loads((mine / "run" / "items.json").read_text())["titles"][0]
    assert "--method mine:plain" in done.out and f"Because of {title}" in typed(done, "Next: ").out

    def pressed(*_):
        raise KeyboardInterrupt

    for words in (("run", *options), ("compare", "--data", DATA, "--rounds", 2, "--methods", "mine:plain,popularity")):
        with monkeypatch.context() as patch:
            patch.setattr("fedtaste.cli.run.execute", pressed)
            stopped = command(*words, "--out", words[0] + "-stopped")
        assert stopped.code == 2 and "--method mine:plain" in stopped.err
        assert "mine:plain" in typed(stopped, "go on with ").out


def test_a_report_needs_no_import(mine):
    run("--method", "mine:plain")
    forget()
    assert command("report", "run", "--json").json and "imports_of_mine" not in sys.modules


def test_an_interrupted_run_is_resumed(mine):
    result = run("--method", "mine:plain")
    for name in ("result.json", "report.html", "state.safetensors"):
        (mine / "run" / name).unlink(missing_ok=True)
    forget()
    assert command("resume", "run", "--method", "mine:plain", "--json").json["seen"] == result["seen"]


def test_defaults_of_define_and_of_the_task_apply(mine):
    find_method_here("mine:defined")
    ranking = Facts("ranking", 40)
    assert plan(Settings(method="mine:defined"), ranking).rounds == 3
    assert plan(Settings(method="mine:defined"), ranking).settings["lr"] == 0.5
    assert plan(Settings(method="mine:plain"), ranking).settings["lr"] == 10.0


def find_method_here(name: str) -> None:
    """Import with the current folder on the path, as the command line does."""
    sys.path.append("")
    for other in (name, "mine:plain"):
        find_method(other)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nowhere:f", "no module nowhere"),
        ("mine:plian", 'Did you mean "mine:plain"'),
        ("mine:number", "must be a function, got int"),
        ("mine:no_model", "does not take a Model"),
        ("mine:positional", "lr of mine:positional must be a keyword-only setting"),
        ("mine:no_default", "lr of mine:no_default needs a default"),
        ("mine:nothing", "mine:nothing must return a Method, got NoneType. A method is a function of a Model"),
        ("mine:raises", "mine:raises raised ValueError: oh no ("),
        ("mine:leaves", "mine:leaves raised SystemExit: 3 ("),
        ("mine:of_text", "mine:of_text takes str as its first argument, not a Model"),
        ("mine:Refuses", "does not take a Model"),
        ("os:system", "os:system is no function that is written in Python"),
        ("builtins:print", "builtins:print is no function that is written in Python"),
        ("builtins:dict", "builtins:dict is no function that is written in Python"),
        ("torch:relu", "torch:relu is no function that is written in Python"),
        ("os:removedirs", "os:removedirs raised TypeError"),
        ("mine.py:plain", '"mine:plain"'),
        ("broken:f", "ValueError: oh no"),
        ("needy:f", "needs nobody_has_this"),
        ("__main__:f", "script or a notebook"),
        ("mine:", "package.module:function"),
    ],
)
def test_errors_say_what_was_wrong(mine, name, part):
    (mine / "broken.py").write_text('raise ValueError("oh no")')
    (mine / "needy.py").write_text("import nobody_has_this")
    command("run", "--data", DATA, "--method", name).refused(part)


def signs(model: Model, *, lr: float = 5.0) -> Method:
    """FedAvg under another name."""
    return fedtaste.fedavg(model, lr=lr)


def test_evaluate_takes_functions_names_and_data():
    data = fedtaste.load(DATA)
    own = fedtaste.evaluate(signs, data, rounds=2, lr=5.0)
    assert own.method == f"{__name__}:signs" and own.run == ""
    assert own.seen == fedtaste.evaluate("fedavg", DATA, rounds=2, lr=5.0).seen
    assert fedtaste.evaluate(fedtaste.fedavg, data, rounds=1).method == "fedavg"
    assert fedtaste.evaluate(lambda model: fedtaste.fedavg(model, lr=5.0), data, rounds=2).seen == own.seen
    spec = define(defaults={"ranking": {"rounds": 2, "lr": 5.0}})(signs)
    assert fedtaste.evaluate(spec, data).seen == own.seen
    with pytest.raises(SettingError, match='"lrr" is not a setting'):
        fedtaste.evaluate(signs, data, lrr=1.0)
    with pytest.raises(SettingError, match="must be a name or a function, got int"):
        fedtaste.evaluate(3, data)
    OWN.clear()


def test_a_function_of_a_notebook_cannot_be_resumed_without_it(tmp_path):
    method = lambda model: fedtaste.fedavg(model)
    method.__module__ = "__main__"
    name = name_method(method)
    assert known_method(name).factory is method
    settings = Settings(data=DATA, method=name, rounds=1)
    folder = RunFolder.create(tmp_path / "run", settings.model_dump(), fedtaste.load(DATA), fedtaste.__version__)
    OWN.clear()
    with pytest.raises(SettingError, match="Define the function again"):
        plan(folder.settings(), Facts("ranking", 40))


def test_a_federation_in_one_process_trains_it(mine, tmp_path):
    find_method_here("mine:plain")
    folder, grid = federation_in_process(tmp_path / "federation", data=DATA, method="mine:plain", rounds=2)
    result = serve_to_the_end(folder, grid)
    assert result["method"] == "mine:plain" and 0 < result["seen"]["sampled"]["hr@10"] <= 1


def test_a_replaced_client_runs_instead_of_the_kernel_of_the_old_one():
    """fedavg has a compiled kernel for whole cohorts, which would ignore the new client."""
    data = fedtaste.load("synthetic:30x20x300")
    model = fedtaste.factorization(len(data.items), k=2)
    fedavg = fedtaste.fedavg(model)

    def silent(download, own, examples):
        upload, own = fedavg.client(download, own, examples)
        return fedtaste.Upload({name: 0 * value for name, value in upload.total.items()}, upload.weight), own

    federation = fedtaste.of_histories(data.histories(), len(data.items))
    changes = [
        next(iter(fedtaste.run(method, model, federation, rounds=1))).change
        for method in (fedavg, fedavg.replace(client=silent))
    ]
    assert fedavg.fast.kernel is not None and changes[0] > 0 and changes[1] == 0


def test_a_replaced_personalisation_has_no_fast_scores_of_the_old_one():
    fedals = fedtaste.fedals(fedtaste.factorization(20, k=2))
    changed = fedals.replace(personalize=lambda shared, own, examples: shared | own)
    assert fedals.fast.users is not None and changed.fast.users is None
    assert changed.fast.kernel is fedals.fast.kernel and fedals.replace(sums=False).fast is fedals.fast


def test_built_in_methods_are_found_by_name_and_by_function():
    assert name_method("fedals") == name_method(METHODS["fedals"]) == "fedals"
    with pytest.raises(SettingError, match='Did you mean "fedals"'):
        find_method("fedal")
