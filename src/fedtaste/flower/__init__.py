"""Federations over Flower: the same methods with real messages between real machines.

    from fedtaste.flower import client_app, server_app
    app = client_app()          # on every node: its people's data and its store (node-config: data, store, name)
    app = server_app()          # the experiment of `fedtaste run`; the clients are on those nodes

`fedtaste federate` starts a federation on one machine; docs/deploy.md is about several machines.

    a node        node_app, node, node_noise, answered_rounds, shards
    the server    server, membership, validation, status
    both          messages, secagg
    one machine   federate, cluster, processes, superlink_client, certificates
    several       deploy, templates/

No module here may be called client_app or server_app: importing it would replace the function of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtaste.flower.processes import require_flower

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedtaste.flower.node import LoadNodeData

__all__ = ["client_app", "server_app"]


def client_app(load: LoadNodeData | None = None) -> ClientApp:
    """The Flower app of a node. `load(node, order)` replaces the node's own data with other NodeData, for methods that
    are not in fedtaste."""
    require_flower()
    from flwr.clientapp import ClientApp

    from fedtaste.flower.node_app import answer

    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return answer(message, context, load)

    app.train()(handle)
    app.evaluate()(handle)
    app.query()(handle)
    return app


def server_app() -> ServerApp:
    """The Flower app of the server. Its run-config: `folder` (a run folder of `fedtaste federate`, or a new one),
    `settings` and `catalogue` for a new one, `nodes` to wait for, `deadline` in seconds, `least` share of people."""
    require_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedtaste.flower.server import serve  # imports torch, and nodes load this app, too

        serve(grid, context.run_config)

    return app
