"""The app of a federation whose server records every byte of the secure sums that it receives.

The file is copied into the app's folder as its module. Nodes keep a copy of their contributions, for comparison.
    federation/witness.bin, witness.json    all byte strings that the server received, and from which node
    federation/opened-N.npy                 the N-th revealed sum
    a node's store/sealed.jsonl, sealed-*   its contributions, which are not sent
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import Key

import fedtaste.flower.node_app as node_side
import fedtaste.flower.server as server_side
from fedtaste.flower import client_app, server_app
from fedtaste.flower.messages import unpack_request

secure_reply, clients, secure_sum = node_side.secure_reply, server_side.FlowerClients, server_side.secure_sum


def recording_reply(message: Message, context: Context, vector: Any) -> Message:
    return secure_reply(message, context, lambda request: record(context, vector, request))


def record(context: Context, vector: Any, request: bytes) -> Any:
    words, aux = vector(request)
    order, _ = unpack_request(request)
    store = Path(str(context.node_config["store"]))
    file = store / f"sealed-{order.phase}-{order.round}.npy"
    np.save(file, words)
    entry = {"run": order.run, "phase": order.phase, "round": order.round, "node": context.node_id, "file": str(file)}
    with open(store / "sealed.jsonl", "a") as log:
        log.write(json.dumps(entry) + "\n")
    return words, aux


class Witness:
    """Writes all byte strings of all messages to one file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.entries, self.messages = folder, [], 0

    def observe(self, message: Message) -> None:
        self.messages += 1
        if message.has_error():
            return
        records = message.content.config_records.items()
        with open(self.folder / "witness.bin", "ab") as log:
            for record, values in records:
                for name, value in values.items():
                    for part in value if isinstance(value, list) else [value]:
                        data = part if isinstance(part, bytes) else repr(part).encode()
                        self.entries.append({
                            "message": self.messages, "node": message.metadata.src_node_id, "record": record,
                            "key": "masked" if name == Key.MASKED_PARAMETERS else name, "at": log.tell(),
                            "long": len(data),
                        })  # fmt: skip
                        log.write(data)
            arrays = message.content.array_records.values()
            assert not any(len(record) for record in arrays), "arrays were sent in clear"
        (self.folder / "witness.json").write_text(json.dumps(self.entries))


def recording_clients(*more: Any) -> Any:
    folder = Path(str(server_side.FOLDER)) / "federation"
    flower_clients = clients(*more)
    flower_clients.observe = Witness(folder).observe
    return flower_clients


def recording_sum(*words: Any, **more: Any) -> Any:
    result = secure_sum(*words, **more)
    if result.total is not None:
        folder = Path(str(server_side.FOLDER)) / "federation"
        np.save(folder / f"opened-{len(list(folder.glob('opened-*')))}.npy", result.total)
    return result


serve = server_side.serve


def recording_serve(grid: Any, config: dict[str, Any]) -> Any:
    server_side.FOLDER = config["folder"]
    return serve(grid, config)


node_side.secure_reply, server_side.FlowerClients, server_side.secure_sum, server_side.serve = (
    recording_reply,
    recording_clients,
    recording_sum,
    recording_serve,
)
client = client_app()
server = server_app()
