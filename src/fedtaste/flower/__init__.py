"""Federations over Flower: the same methods with real messages between real machines.

    from fedtaste.flower import client_app, server_app
    app = client_app()          # on every node: its people's data and its store (node-config: data, store, name)
    app = server_app()          # the experiment of `fedtaste run`; the clients are on those nodes

`fedtaste federate` starts a federation on one machine; docs/deploy.md is about several machines.

    a node        client_app, node, node_noise, answered_rounds, shards
    the server    server_app, server, membership, validation, status
    both          messages, secagg
    one machine   federate, cluster, processes, superlink_client, certificates
    several       deploy, app_files, templates/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedtaste.flower.node import LoadNodeData

__all__ = ["client_app", "server_app"]


def client_app(load: LoadNodeData | None = None) -> ClientApp:
    """The Flower app of a node. `load(node, order)` replaces the node's own data with other NodeData, for methods that
    are not in fedtaste."""
    from fedtaste.flower.processes import require_flower

    require_flower()
    from fedtaste.flower.client_app import make_client_app

    return make_client_app(load)


def server_app() -> ServerApp:
    """The Flower app of the server. Its run-config: `folder` (a run folder of `fedtaste federate`, or a new one),
    `settings` and `catalogue` for a new one, `nodes` to wait for, `deadline` in seconds, `least` share of people."""
    from fedtaste.flower.processes import require_flower

    require_flower()
    from fedtaste.flower.server_app import make_server_app

    return make_server_app()
