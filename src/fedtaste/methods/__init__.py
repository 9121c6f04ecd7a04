"""METHODS: every federated method by its name, and how to build one from settings.

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
from fedtaste.methods.fedrap import fedrap
from fedtaste.methods.fedrecon import fedrecon
from fedtaste.methods.fedtrail import fedtrail
from fedtaste.methods.fedveil import fedveil
from fedtaste.methods.mixing import apfl, lgmix
from fedtaste.methods.pfedrec import pfedrec
from fedtaste.methods.proximal import ditto, fedclup, pfedme
from fedtaste.methods.registry import MethodSpec
from fedtaste.methods.server_optimizers import with_server
from fedtaste.signature import Values, settings_of
from fedtaste.text import did_you_mean

__all__ = ["METHODS", "build", "find_method"]
__all__ += ["popularity", "local", "centralised", "fedsgd", "fedavg", "fedprox", "fedper", "fedrep", "fedbn", "ditto"]
__all__ += ["pfedme", "apfl", "fedclup", "lgmix", "fedrecon", "fedals", "fedrap", "fedtrail", "fedveil", "fcf", "fedmf"]
__all__ += ["fedncf", "pfedrec"]

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
    "fedveil": fedveil,
    "fcf": fcf,
    "fedmf": fedmf,
    "fedncf": fedncf,
    "pfedrec": pfedrec,
}


def find_method(name: str) -> MethodSpec[...]:
    """The method of this name; a plain function in METHODS has no defaults of its own and reads all its settings."""
    if name not in METHODS:
        raise SettingError(did_you_mean(name, METHODS, "method"))
    method = METHODS[name]
    return method if isinstance(method, MethodSpec) else MethodSpec(method)


def build(name: str, model: Model, settings: Values) -> Method:
    """The method of this name, with those of these settings that it has; `server`, `server_lr`, `momentum` and `tau`
    choose the server's optimiser.

    >>> from fedtaste.models import factorization
    >>> build("fedavg", factorization(50, k=8), {"lr": 0.5, "server": "adam"}).examples
    'samples'
    """
    spec = find_method(name)
    read = {key: value for key, value in settings.items() if key in settings_of(spec)}
    return with_server(spec(model, **read), name, settings)
