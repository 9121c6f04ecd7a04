"""Packed downloads (`--download`): their contents, their sizes, and training with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fedtaste.core import Download
from fedtaste.engine.run import run
from fedtaste.wire.messages import encode
from fedtaste.wire.packing import FORMS, pack
from support.states import assert_close, everything
from support.worlds import world


@examples(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 9), st.floats(0, 1), st.integers(0, 9), st.sampled_from(sorted(FORMS)))
def test_unpacked_tables_equal_the_packed_ones_up_to_rounding(rows, width, share, seed, form):
    """The forms sparse and rows are exact; int8 is off by at most half a step of the row's scale. Zeros stay zeros."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, width, generator=generator)
    table[torch.rand(rows, width, generator=generator) < share] = 0.0
    table[: rows // 2] *= float(share < 0.5)
    written, read = pack({"item": table, "mean": torch.tensor(3.0)}, form)
    assert read["item"].shape == table.shape and read["mean"] == 3 and ((table == 0) <= (read["item"] == 0)).all()
    step = table.abs().amax(1, keepdim=True) / 254 if rows else table
    assert ((read["item"] - table).abs() <= (1.001 * step + 1e-12 if form == "int8" else 0)).all()
    size = sum(value.numel() * value.element_size() for value in written.values())
    assert size <= 4 * (table.numel() + 1)


def test_a_sparse_table_is_small_on_the_wire():
    table = torch.zeros(1000, 32)
    table[:100] = 1.0
    sizes = {form: len(encode(Download(pack({"item": table}, form)[0], torch.tensor(0.0)))) for form in FORMS}
    dense = len(encode(Download({"item": table}, torch.tensor(0.0))))
    assert sizes["rows"] < dense / 9 and sizes["sparse"] < dense / 7 and sizes["int8"] < dense / 3.5


@pytest.mark.parametrize("form", ["sparse", "rows"])
def test_exact_forms_change_only_the_number_of_bytes(form):
    settings = {"lr": 0.1, "table_lr": 5.0, "passes": 2, "prox": 0.5}
    method, model, federation = world("fedrap", settings, "ranking")
    dense, packed = (list(run(method, model, federation, rounds=4, download=way)) for way in ("dense", form))
    assert_close(everything(dense[-1].state), everything(packed[-1].state), 0)
    assert packed[-1].zeros > 0.5 and packed[-1].down_bytes < dense[-1].down_bytes
    assert packed[0].down_bytes == dense[0].down_bytes  # at the start no number is zero, so packing saves nothing


def test_clients_compute_with_the_rounded_download():
    method, model, federation = world("fedavg", {"lr": 0.1}, "ranking")
    exact, rounded = (list(run(method, model, federation, rounds=2, download=way))[-1] for way in ("dense", "int8"))
    assert rounded.down_bytes < exact.down_bytes and rounded.up_bytes == exact.up_bytes
    gap = (rounded.state.shared["item"] - exact.state.shared["item"]).abs().max()
    assert 0 < float(gap) < 0.05
