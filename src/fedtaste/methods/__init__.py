"""METHODS: every federated method by its name, and how to find and build one.

`find_method` also imports a method of the user's own, named "package.module:function" (own.py).

To add a method: write one function of a Model with keyword-only settings that returns a Method, and put it here; then
give it a row in the law table (tests/test_laws.py). `define` (registry.py) attaches defaults, in the method's own file.
In all methods `own` are a client's private parameters, and `g` or `shared` are the downloaded ones.
"""

from __future__ import annotations

from collections.abc import Callable

from fedtaste.core import Method, Model
from fedtaste.errors import SettingError
from fedtaste.methods.averaging import fedavg, fedbn, fedmf, fedncf, fedper, fedprox, fedrep, fedsgd
from fedtaste.methods.baselines import centralised, local, popularity
from fedtaste.methods.fcf import fcf
from fedtaste.methods.fedals import fedals
from fedtaste.methods.fedeigen import fedeigen
from fedtaste.methods.fedrap import fedrap
from fedtaste.methods.fedrecon import fedrecon
from fedtaste.methods.fedseq import fedseq
from fedtaste.methods.fedtrail import fedtrail
from fedtaste.methods.fedveil import fedveil
from fedtaste.methods.mixing import apfl, lgmix
from fedtaste.methods.own import Factory, find_own, import_method, register
from fedtaste.methods.pfedrec import pfedrec
from fedtaste.methods.proximal import ditto, fedclup, pfedme
from fedtaste.methods.registry import MethodSpec
from fedtaste.methods.server_optimizers import with_server
from fedtaste.signature import Values, settings_of
from fedtaste.text import did_you_mean

__all__ = ["METHODS", "build", "find_method", "known_method", "name_method"]
__all__ += ["popularity", "local", "centralised", "fedsgd", "fedavg", "fedprox", "fedper", "fedrep", "fedbn", "ditto"]
__all__ += ["pfedme", "apfl", "fedclup", "lgmix", "fedrecon", "fedals", "fedrap", "fedtrail", "fedveil", "fcf", "fedmf"]
__all__ += ["fedeigen", "fedncf", "fedseq", "pfedrec"]

METHODS: dict[str, Callable[..., Method]] = {
    "popularity": popularity,
    "local": local,
    "centralised": centralised,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedper": fedper,
    "fedrep": fedrep,
    "fedbn": fedbn,
    "ditto": ditto,
    "pfedme": pfedme,
    "apfl": apfl,
    "fedclup": fedclup,
    "lgmix": lgmix,
    "fedrecon": fedrecon,
    "fedals": fedals,
    "fedrap": fedrap,
    "fedtrail": fedtrail,
    "fedeigen": fedeigen,
    "fedseq": fedseq,
    "fedveil": fedveil,
    "fcf": fcf,
    "fedmf": fedmf,
    "fedncf": fedncf,
    "pfedrec": pfedrec,
}


def name_method(method: str | Factory) -> str:
    """The name of a method for Settings. A function is registered in this process, and "module:function" is imported:
    pass only names that the user gave. Any other name must be one of METHODS."""
    if not isinstance(method, str):
        builtin = next((name for name, known in METHODS.items() if known is method), None)
        return builtin or register(method)
    if method not in METHODS and ":" in method:
        return import_method(method)
    known_method(method)
    return method


def find_method(method: str | Factory) -> MethodSpec[...]:
    """The method of this name, of this "module:function" (which is imported), or this function."""
    return known_method(name_method(method))


def known_method(name: str) -> MethodSpec[...]:
    """A method of METHODS, or one of the user's own that this process knows already; nothing is imported. A plain
    function has no defaults of its own and reads all its settings."""
    if name not in METHODS and ":" in name:
        return find_own(name)
    if name not in METHODS:
        raise SettingError(
            did_you_mean(name, METHODS, "method") + " Or a function of your own: package.module:function."
        )
    method = METHODS[name]
    return method if isinstance(method, MethodSpec) else MethodSpec(method)


def build(name: str, model: Model, settings: Values) -> Method:
    """The method of this name, with those of these settings that it has; `server`, `server_lr`, `momentum`, `tau`,
    `warmup`, `final_rate` and `max_norm` choose the server's optimiser.

    >>> from fedtaste.models import factorization
    >>> build("fedavg", factorization(50, k=8), {"lr": 0.5, "server": "adam"}).examples
    'samples'
    """
    spec = known_method(name)
    read = {key: value for key, value in settings.items() if key in settings_of(spec)}
    return with_server(spec(model, **read), name, settings)
