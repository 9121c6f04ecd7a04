"""Trained states for tests: train a tiny world, gather all parameters of a state, compare two states."""

from __future__ import annotations

import numpy as np
import torch

from fedtaste.engine.run import run
from support.worlds import world


def trained(name, settings, task, *, rounds=3, backend="auto", model=None, **options):
    """All rounds of a training on a small world; `options` go to `world`."""
    method, own_model, federation = world(name, settings, task, **options)
    return list(run(method, model or own_model, federation, rounds=rounds, backend=backend, seed=1))


def everything(state):
    """All parameters, shared and private, as one dict."""
    private = state.private.gather(np.arange(state.private.people))
    return dict(state.shared) | {f"private/{n}": v for n, v in private.items()}


def assert_close(a, b, tolerance=1e-5):
    """Parameters have the same names and differ by at most the tolerance, relative to the largest number if above 1."""
    assert a.keys() == b.keys()
    for name in a:
        scale = max(1.0, float(a[name].abs().max()) if a[name].numel() else 1.0)
        assert torch.allclose(a[name], b[name], rtol=0, atol=tolerance * scale), name
