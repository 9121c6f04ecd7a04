"""The app of a federation whose server writes down every byte of a secure sum that reaches it.

It is copied into the app's folder as its module. Nodes keep a copy of what they put in on their own disk, to compare.
    federation/witness.bin, witness.json    all byte strings that the server received, and from which node
    federation/opened-N.npy                 the N-th sum that was opened
    a node's store/sealed.jsonl, sealed-*   its own words, which never leave
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


def kept(message: Message, context: Context, vector: Any) -> Message:
    return secure_reply(message, context, lambda ask: recorded(context, vector, ask))


def recorded(context: Context, vector: Any, ask: bytes) -> Any:
    words, aux = vector(ask)
    order, _ = unpack_request(ask)
    store = Path(str(context.node_config["store"]))
    file = store / f"sealed-{order.phase}-{order.round}.npy"
    np.save(file, words)
    told = {"run": order.run, "phase": order.phase, "round": order.round, "node": context.node_id, "file": str(file)}
    with open(store / "sealed.jsonl", "a") as log:
        log.write(json.dumps(told) + "\n")
    return words, aux


class Witness:
    """Every bytes in every record of every message, one after the other."""

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


def watched(*more: Any) -> Any:
    folder = Path(str(server_side.FOLDER)) / "federation"
    made = clients(*more)
    made.observe = Witness(folder).observe
    return made


def opened(*words: Any, **more: Any) -> Any:
    found = secure_sum(*words, **more)
    if found.total is not None:
        folder = Path(str(server_side.FOLDER)) / "federation"
        np.save(folder / f"opened-{len(list(folder.glob('opened-*')))}.npy", found.total)
    return found


serve = server_side.serve


def located(grid: Any, config: dict[str, Any]) -> Any:
    server_side.FOLDER = config["folder"]
    return serve(grid, config)


node_side.secure_reply = kept
server_side.FlowerClients, server_side.secure_sum, server_side.serve = watched, opened, located
client = client_app()
server = server_app()
