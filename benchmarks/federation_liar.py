"""The app of a federation in which a node lies: one wrong message per round, in the order of `lies` in its node-config.

The file is copied into the app's folder as its module. A node without `lies` is honest. The liar computes the correct
upload and changes it before sending. It has its own key, so it can also send to the SuperLink beside its SuperNode, and
so answer twice.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtaste.core import Upload
from fedtaste.flower import client_app, server_app
from fedtaste.flower.messages import Order, TrainReport, pack_content, parse_message, unpack_content
from fedtaste.wire.messages import Head, decode, encode

server = server_app()
client = ClientApp()
honest = client_app()


def falsify(lie: str, blob: bytes, first_message: Path) -> bytes:
    """The message of this lie in place of the correct one."""
    upload, head = decode(blob)
    first = next(iter(upload.total))

    def number(value: float) -> bytes:
        total = {name: leaf.clone() for name, leaf in upload.total.items()}
        total[first].view(-1)[0] = value
        return encode(Upload(total, upload.weight), head)

    if lie in ("NaN", "inf", "1e9", "-1e9"):
        return number(float(lie))
    if lie.startswith("weight "):
        return encode(Upload(upload.total, torch.tensor(float(lie.split()[1]))), head)
    if lie == "wrong shape":
        return encode(Upload(upload.total | {first: upload.total[first][:-1]}, upload.weight), head)
    if lie == "other names":
        return encode(Upload({"else": upload.total[first]}, upload.weight), head)
    if lie == "oversized":
        return blob + bytes(10 * len(blob))
    if lie == "noise":
        return bytes(range(256)) * 8
    if lie == "another node's place":
        return encode(upload, head._replace(person=(head.person + 1) % 4))
    if lie == "another run's":
        return encode(upload, Head(head.run + 1, head.round, head.person))
    if lie == "an earlier round's":
        return first_message.read_bytes()
    return blob


def act(message: Message, context: Context) -> Message:
    reply, lies = honest(message, context), str(context.node_config.get("lies", ""))
    if not lies:
        return reply
    order = parse_message(Order, unpack_content(message)[0])
    if order.action != "train":
        return reply
    lie = lies.split(",")[order.round]
    words, blob = unpack_content(reply)
    first_message = Path(str(context.node_config["store"])) / "said"
    report, falsified = parse_message(TrainReport, words), falsify(lie, blob, first_message)
    if not first_message.exists():
        first_message.write_bytes(blob)
    with open(first_message.with_name("lies"), "a") as log:
        log.write(f"{order.round + 1} {lie}\n")
    if lie == "after the deadline":
        due = message.metadata.created_at + float(str(context.node_config["late"]))
        time.sleep(max(0.0, due - time.time()))
    answer = Message(pack_content(report, falsified), reply_to=message)
    if lie == "twice":
        send_directly(answer, context)
        answer = Message(pack_content(report, falsify("NaN", blob, first_message)), reply_to=message)
    return answer


def send_directly(reply: Message, context: Context) -> None:
    """Send a reply with this node's key, beside its SuperNode, which then sends another reply to the same message."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.fleet_http_connection import RuntimeVersionHttpInterceptor
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from fedtaste.flower.certificates import load_node_key

    config = context.node_config
    key = load_node_key(Path(str(config["key"])))
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
    node = Node(node_id=context.node_id)
    with FleetHttpClient.from_server_address(
        str(config["superlink"]),
        False,
        Path(str(config["root"])).read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    ) as link:
        header = message_to_proto(remove_content_from_message(reply))
        push = link.PushMessages(
            PushMessagesRequest(
                node=node, messages_list=[header], message_object_trees=[tree], clientapp_runtime_list=[0.1]
            )
        )
        for name in push.objects_to_push:
            link.PushObject(
                PushObjectRequest(
                    node=node,
                    run_id=reply.metadata.run_id,
                    object_id=name,
                    object_content=objects[name],
                    session_id=push.session_id,
                )
            )


client.train()(act)
client.evaluate()(act)
client.query()(act)
