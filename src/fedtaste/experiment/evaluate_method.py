"""`fedtaste.evaluate`: evaluate any method, also a function of the user's own, on any data in one call."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedtaste import __version__
from fedtaste.data.interactions import Interactions
from fedtaste.data.sources import load
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import keyword_errors
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy_ledger import LedgerChoice, enter_run
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings, settings_from
from fedtaste.experiment.train import execute, prepare
from fedtaste.methods import name_method
from fedtaste.methods.own import Factory


@keyword_errors()
def evaluate(
    method: str | Factory, data: object, *, listener: ProgressListener | None = None, ledger: LedgerChoice = None,
    **settings: object,
) -> RunResult:  # fmt: skip
    """Train and evaluate a method as `fedtaste run` does, in a temporary folder that is removed at the end.

    `method` is a name of METHODS, "package.module:function", or a function of a Model that returns a Method. `data` is
    a data set, or what `load` accepts: a frame, a name or a path. `settings` are fields of `Settings` (rounds, seed,
    new_people, wire, ...); any other name is a setting of the method or its model, as with `--set`. A private run
    is entered into the privacy ledger of the data, as on the command line; `ledger` is another file, or False to leave
    it out, so that nobody adds up its epsilon.

    >>> result = evaluate("popularity", "synthetic:60x40x900", seed=1)
    >>> result.method, round(result.seen.metric("sampled.hr@10"), 1)
    ('popularity', 0.7)
    """
    chosen = settings_from(name_method(method), data if isinstance(data, str) else "data", settings)
    loaded = data
    if not isinstance(loaded, Interactions | UserSplit | Supervised):
        loaded = load(data, seed=chosen.seed, options=chosen.read_options)
    if not isinstance(data, str):
        chosen = chosen.model_copy(update={"data": loaded.name})
    return measure(chosen, loaded, listener, ledger, strict=True)


def measure(
    settings: Settings, data: Data, listener: ProgressListener | None, ledger: LedgerChoice = None, *,
    strict: bool = False,
) -> RunResult:  # fmt: skip
    """The result of a run with these settings, in a temporary folder."""
    prepared = prepare(settings, data, strict=strict)
    with tempfile.TemporaryDirectory(prefix="fedtaste-") as path:
        folder = RunFolder.create(Path(path), settings.model_dump(), data, __version__)
        enter_run(folder, prepared, ledger)
        return execute(prepared, folder, listener).model_copy(update={"run": ""})
