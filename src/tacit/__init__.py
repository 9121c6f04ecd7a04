"""tacit: personalised federated recommendation. Public names, in the order of the data flow.

load -> leave_one_out -> of_histories -> factorization, fedals, ... -> run -> top_items
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.7.0"

# Read when the thread pools are loaded, which is later: threads that wait should sleep. On a busy machine rounds were
# four times slower with threads that spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_HOMES = {
    "errors": ["TacitError", "DataError", "ChecksumError", "SettingError", "RunError"]
    + ["ProtocolError", "DivergedError"],
    "core": ["Params", "Examples", "Download", "Upload", "Model", "Method", "Seat", "Stage", "chain"],
    "data.interactions": ["Interactions", "Histories"],
    "data.sources": ["SOURCES", "load"],
    "data.importing": ["BroughtSplit"],
    "data.synthetic": ["synthetic"],
    "data.supervised": ["Supervised"],
    "data.partitions": ["by_label", "dirichlet"],
    "data.splits": ["Split", "leave_one_out", "temporal", "held_out_people", "support_query"],
    "federation": ["Federation", "of_histories", "of_arrays", "pooled"],
    "models": ["factorization", "scorer", "additive", "linear", "ncf", "logistic", "cnn", "digit_network", "wrap"],
    "local": ["descend", "slope", "curvature", "split", "nest", "unnest", "square_distance", "ridge"],
    "methods": ["METHODS", "build"]
    + ["popularity", "local", "centralised", "fedsgd", "fedavg", "fedprox", "fedper", "fedrep", "fedrecon", "fedals"]
    + ["fedtrail", "fedveil", "fedrap", "pfedrec", "fcf", "fedmf", "fedncf"]
    + ["fedbn", "ditto", "pfedme", "fedclup", "apfl", "lgmix"],
    "methods.servers": ["server_step"],
    "engine.run": ["State", "Round", "Convergence", "begin", "run"],
    "evaluation.scoring": ["personal_scores", "top_items"],
    "client_tasks": ["personal_outputs"],
    "evaluation.metrics": ["ranking_metrics", "rating_metrics"],
    "settings": ["Settings"],
    "experiment": ["execute"],
    "heterogeneity": ["heterogeneity"],
    "tradeoff": ["weigh"],
    "report": ["write_report"],
    "export": ["export"],
    "recommender": ["Recommender"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that `tacit --help` does not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"tacit has no {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing tacit/local.py would put the module where `tacit.local` (the method) is looked for: it may not."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if TYPE_CHECKING:
    from .client_tasks import personal_outputs
    from .core import Download, Examples, Method, Model, Params, Seat, Stage, Upload, chain
    from .data.importing import BroughtSplit
    from .data.interactions import Histories, Interactions
    from .data.partitions import by_label, dirichlet
    from .data.sources import SOURCES, load
    from .data.splits import Split, held_out_people, leave_one_out, support_query, temporal
    from .data.supervised import Supervised
    from .data.synthetic import synthetic
    from .engine.run import Convergence, Round, State, begin, run
    from .errors import ChecksumError, DataError, DivergedError, ProtocolError, RunError, SettingError, TacitError
    from .evaluation.metrics import ranking_metrics, rating_metrics
    from .evaluation.scoring import personal_scores, top_items
    from .experiment import execute
    from .export import export
    from .federation import Federation, of_arrays, of_histories, pooled
    from .heterogeneity import heterogeneity
    from .local import curvature, descend, nest, ridge, slope, split, square_distance, unnest
    from .methods import (
        METHODS,
        apfl,
        build,
        centralised,
        ditto,
        fcf,
        fedals,
        fedavg,
        fedbn,
        fedclup,
        fedmf,
        fedncf,
        fedper,
        fedprox,
        fedrap,
        fedrecon,
        fedrep,
        fedsgd,
        fedtrail,
        fedveil,
        lgmix,
        local,
        pfedme,
        pfedrec,
        popularity,
    )
    from .methods.servers import server_step
    from .models import additive, cnn, digit_network, factorization, linear, logistic, ncf, scorer, wrap
    from .recommender import Recommender
    from .report import write_report
    from .settings import Settings
    from .tradeoff import weigh
