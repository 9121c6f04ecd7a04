"""The same methods over Flower: real messages between real machines.

    from tacit.flower import client_app, server_app
    app = client_app()          # on every node: its people, its store (node-config: data, store, name)
    app = server_app()          # the experiment of `tacit run`, whose devices are those nodes

`tacit federate` starts all of it on one machine; docs/deploy.md is for several.

    messages.py   what is said              node.py     a node             shards.py       what a node holds
    roll.py       who is here               server.py   a round, a task    secagg.py       sums that hide their parts
    checks.py     what is not believed      job.py      a run's server     cluster.py      the processes of one machine
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

__all__ = ["client_app", "server_app"]


def client_app(make: Any = None) -> ClientApp:
    """The app of a node. `make(node, order)` may give another Home than the node's data, for methods of one's own."""
    from .processes import require_flower

    require_flower()
    from .app import node_app

    return node_app(make)


def server_app() -> ServerApp:
    """The app of the server. Its run-config: `folder` (a run folder that `tacit federate` made, or a new one),
    `settings` and `catalogue` for a new one, `nodes` to wait for, `deadline` in seconds, `least` share of people."""
    from .processes import require_flower

    require_flower()
    from .job import run_app

    return run_app()
