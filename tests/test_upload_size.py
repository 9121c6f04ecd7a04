"""The size of an upload before training: exact extrapolation, a note, a refusal."""

from __future__ import annotations

import pytest

from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.upload_size import upload_bytes
from fedtaste.methods import build
from fedtaste.models import factorization
from fedtaste.tasks.base import Facts
from fedtaste.wire.parse import parse


def facts(items: int) -> Facts:
    return Facts("ranking", items, True, people=1000)


def fedals(items: int):
    model = factorization(items, k=8)
    return build("fedals", model, {}), model


@pytest.mark.parametrize("wire, numbers", [("", 45 * 4), ("turns=0.2", 45 * 4 / 5), ("quantise=8", 45)])
def test_the_size_of_an_upload_follows_from_small_catalogues(wire, numbers):
    assert upload_bytes(fedals, parse(wire), 100_000) == pytest.approx(100_000 * numbers, rel=1e-3)


def test_a_large_upload_is_announced_with_its_size_and_another_method():
    notes = plan(Settings(method="fedals"), facts(20_000)).notes
    assert any("172 MB with 20,000 items" in note and "fedeigen" in note for note in notes)  # 4 x 20,000 x 2,145
    assert not any("One upload" in note for note in plan(Settings(method="fedeigen"), facts(20_000)).notes)
    assert not any("One upload" in note for note in plan(Settings(method="fedals"), facts(5_000)).notes)


def test_an_upload_that_no_device_could_send_is_refused_before_training():
    with pytest.raises(SettingError, match="fedeigen"):
        plan(Settings(method="fedals"), facts(2_000_000))
