"""`fedtaste monitor`: /health and /metrics of a federation's server or of a node."""

from __future__ import annotations

from fedtaste.cli.options import MonitorOptions
from fedtaste.cli.output import event_log
from fedtaste.cli.serve import host, listen, warn_exposed
from fedtaste.flower.monitor import open_monitor
from fedtaste.serving.server import Server


def monitor(options: MonitorOptions) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    site, log = open_monitor(options.path), event_log(options.log)
    with Server(site, listen(options), log) as server:
        warn_exposed(options, server.port, log)
        text = f"{server.url}health and {server.url}metrics describe {options.path}. Ctrl-C stops."
        host(server, options, text, {"url": server.url})
