"""Personalised federated recommendation: learn from everybody, keep each person's data and parameters with that person.

Start with Recommender. The public names, in the order of the data flow: load -> of_histories -> a model and a method ->
run -> top_items; or Settings -> execute -> RunResult. Everything else is importable from its module.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

__version__ = "0.11.0"

# Read when the thread pools start, which is later: waiting threads should sleep. Spinning threads made rounds four
# times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_MODULES = {  # module -> its public names; tests/test_public.py compares this table with the imports below
    "errors": "FedtasteError DataError SettingError RunError",
    "core": "Params Examples Download Upload Model Method Stage",
    "data.interactions": "Interactions",
    "data.sources": "load",
    "data.supervised": "Supervised",
    "federation": "of_histories of_arrays",
    "models": "factorization linear logistic cnn wrap",
    "methods": "METHODS popularity local centralised fedsgd fedavg fedprox fedper fedrep fedbn ditto pfedme apfl"
    " fedclup lgmix fedrecon fedals fedrap fedtrail fedeigen fedseq fedveil fcf fedmf fedncf pfedrec",
    "engine.run": "run State",
    "tasks.serve": "top_items",
    "tasks.clients": "personal_outputs",
    "experiment.settings": "Settings",
    "experiment.result": "RunResult",
    "experiment.train": "prepare execute",
    "experiment.evaluate_method": "evaluate",
    "experiment.heterogeneity": "heterogeneity",
    "report.trade_off": "trade_off",
    "serving.export": "export",
    "recommender": "Recommender",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = ["__version__", *_MODULE_OF]  # noqa: PLE0604 (names are strings)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import fedtaste` does not wait for torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"fedtaste has no {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"fedtaste.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from fedtaste.core import Download, Examples, Method, Model, Params, Stage, Upload
    from fedtaste.data.interactions import Interactions
    from fedtaste.data.sources import load
    from fedtaste.data.supervised import Supervised
    from fedtaste.engine.run import State, run
    from fedtaste.errors import DataError, FedtasteError, RunError, SettingError
    from fedtaste.experiment.evaluate_method import evaluate
    from fedtaste.experiment.heterogeneity import heterogeneity
    from fedtaste.experiment.result import RunResult
    from fedtaste.experiment.settings import Settings
    from fedtaste.experiment.train import execute, prepare
    from fedtaste.federation import of_arrays, of_histories
    from fedtaste.methods import (
        METHODS,
        apfl,
        centralised,
        ditto,
        fcf,
        fedals,
        fedavg,
        fedbn,
        fedclup,
        fedeigen,
        fedmf,
        fedncf,
        fedper,
        fedprox,
        fedrap,
        fedrecon,
        fedrep,
        fedseq,
        fedsgd,
        fedtrail,
        fedveil,
        lgmix,
        local,
        pfedme,
        pfedrec,
        popularity,
    )
    from fedtaste.models import cnn, factorization, linear, logistic, wrap
    from fedtaste.recommender import Recommender
    from fedtaste.report.trade_off import trade_off
    from fedtaste.serving.export import export
    from fedtaste.tasks.clients import personal_outputs
    from fedtaste.tasks.serve import top_items
