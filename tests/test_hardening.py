"""Data that attack a terminal, a spreadsheet or the disk: control codes, formulas, symbolic links."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.table import Table

from fedtaste.cli.recommend import encode
from fedtaste.data.interactions import Interactions
from fedtaste.data.spreadsheets import guard, guarded, unguarded
from fedtaste.data.user_files import read_interactions, save
from fedtaste.errors import RunError
from fedtaste.experiment.progress_bars import SafeConsole
from fedtaste.files.atomic import no_links, write_atomically
from fedtaste.files.folders import inner_folder
from fedtaste.flower.federate import remove_keys
from fedtaste.flower.status import StatusWriter
from fedtaste.text import CONTROL
from support.command import fedtaste

ESCAPES = "\x1b[2J\x1b]0;title\x07\u202eevil\x9b31m"
FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "'=x", "''@y"]
PLAIN = ["Alien", "-5", "+1.5e3", ".5", "'tis", "a=b", "", "10 - 2"]


# Control codes


def test_nothing_of_data_sends_control_codes_to_the_terminal():
    console = SafeConsole(file=io.StringIO(), force_terminal=False, width=200, highlight=False)
    table = Table(ESCAPES, title=ESCAPES)
    table.add_row(f"cell {ESCAPES}", style="bold")
    console.print(table)
    console.print(f"text {ESCAPES}", markup=False)
    printed = console.file.getvalue()
    assert not CONTROL.search(printed.replace("\n", ""))
    assert "cell [2J" in printed and "text [2J" in printed


def test_styles_of_our_own_still_reach_a_terminal():
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print("red", style="red")
    assert console.file.getvalue() == "\x1b[31mred\x1b[0m\n"


def test_ids_columns_and_file_names_of_a_user_are_printed_without_control_codes(tmp_path):
    path = tmp_path / f"log\x1b[31m{ESCAPES[:4]}.csv"
    rows = [f"{ESCAPES}u{user},i{item},{ESCAPES}" for user in range(12) for item in range(user % 3, 12, 2)]
    path.write_text(f"user,item,{ESCAPES}\n" + "\n".join(rows))
    for words in (("data", "describe", path), ("data", "describe", path, "--columns", f"user={ESCAPES}x")):
        output = fedtaste(*words)
        assert not CONTROL.search((output.out + output.err).replace("\n", "")), output


def test_the_log_of_a_federation_has_no_control_codes(tmp_path, capsys):
    status = StatusWriter()
    status.open(tmp_path)
    status.log(f"node {ESCAPES}")
    for text in ((tmp_path / "server.log").read_text(), capsys.readouterr().out):
        assert not CONTROL.search(text.replace("\n", "")) and "node [2J" in text


# Spreadsheets


def test_cells_that_a_spreadsheet_would_compute_are_guarded_and_read_back():
    assert [guard(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]
    assert [guard(text) for text in PLAIN] == PLAIN
    frame = pl.DataFrame({"title": FORMULAS + PLAIN, "score": [-0.5] * len(FORMULAS + PLAIN)})
    assert guarded(frame)["title"].to_list() == [guard(text) for text in FORMULAS + PLAIN]
    assert guarded(frame)["score"].to_list() == frame["score"].to_list()
    assert unguarded(guarded(frame))["title"].to_list() == FORMULAS + PLAIN


def test_a_written_table_is_guarded_and_the_same_data_are_read_back(tmp_path):
    names = (*FORMULAS[:4], "-5", "Alien")
    n = np.arange(6, dtype=np.int32)
    data = Interactions("x", n, n[::-1].copy(), names, names, titles=tuple(f"={t}" for t in names))
    save(data, tmp_path / "x.csv")
    cells = [cell for line in (tmp_path / "x.csv").read_text().splitlines() for cell in line.split(",")]
    assert not [cell for cell in cells if cell.lstrip('"')[:1] in tuple("=+-@") and cell != "-5"]
    back = read_interactions(tmp_path / "x.csv")
    pairs = {(back.people[p], back.items[i]) for p, i in zip(back.person, back.item)}
    assert pairs == {(names[p], names[5 - p]) for p in range(6)}
    assert dict(zip(back.items, back.titles))["@SUM(A1)"] == "=@SUM(A1)"
    table = encode(pl.DataFrame({"user": ["=1"], "score": [-1.5]}), "all.csv")
    assert table == b"user,score\n'=1,-1.5\n"


SCRIPT = """
import { formatList, parseList } from "./lists.js";
const catalogue = { titles: ["=1+1", "@x, y", "Alien"], names: ["-5", "+a", "i3"] };
const picks = new Map([[0, { value: true }], [1, { value: false }], [2, { value: true }]]);
const text = formatList(picks, catalogue, { task: "ranking" });
console.log(JSON.stringify([text, parseList(text)]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_list_that_the_page_writes_is_guarded_and_read_back(tmp_path):
    for file in (files("fedtaste.serving") / "web").iterdir():
        if file.name.endswith(".js"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "script.js").write_text(SCRIPT)
    done = subprocess.run(["node", tmp_path / "script.js"], capture_output=True, text=True, check=True, timeout=60)
    text, rows = json.loads(done.stdout)
    assert text.split("\r\n") == ["title,item,liked", "'=1+1,-5,yes", "\"'@x, y\",'+a,no", "Alien,i3,yes", ""]
    assert [(row["title"], row["id"]) for row in rows] == [("=1+1", "-5"), ("@x, y", "+a"), ("Alien", "i3")]


# Symbolic links


def test_nothing_is_written_through_a_symbolic_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "plots").symlink_to(elsewhere)
    with pytest.raises(RunError, match="symbolic link"):
        inner_folder(run, "plots")
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (run / "result.json").symlink_to(secret)
    (run / f".result.json.{os.getpid()}.part").symlink_to(secret)
    write_atomically(run / "result.json", b"new")
    assert secret.read_text() == "mine" and (run / "result.json").read_bytes() == b"new"
    assert not (run / "result.json").is_symlink()
    (run / "server.log").symlink_to(secret)
    with pytest.raises(OSError), open(run / "server.log", "a", opener=no_links) as log:
        log.write("x")
    assert secret.read_text() == "mine" and not any(elsewhere.iterdir())


# What a finished federation leaves behind


def test_keys_of_a_finished_federation_are_removed_and_links_are_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").write_text("x")
    flower = tmp_path / "flower"
    for name in ("authority", "nodes", "logs"):
        (flower / name).mkdir(parents=True)
        (flower / name / "file").write_text("x")
    (flower / "server").symlink_to(elsewhere)
    remove_keys(flower)
    assert sorted(path.name for path in flower.iterdir()) == ["logs", "server"]
    assert (elsewhere / "keep").exists()
    remove_keys(Path(tmp_path / "nothing"))
