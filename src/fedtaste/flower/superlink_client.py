"""Client of a SuperLink's HTTP API: state of a run, connected nodes, registration and deactivation of nodes.

Flower's own command does the same but costs a second of CPU time per call. Messages are Flower's protobuf over HTTPS,
as its command sends them. No proxy is used, since the SuperLink is on this machine.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ssl
from base64 import b64encode
from typing import TYPE_CHECKING, TypeVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto import control_pb2 as control
from flwr.proto import fleet_pb2 as fleet

from fedtaste.errors import RunError

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
TIMEOUT_SECONDS = 30


class Unreachable(RunError):
    """The SuperLink does not answer."""


class SuperLinkClient:
    """Calls the SuperLink at `address` (host:port), whose certificate is checked with `context`."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        self.address, self._context = address, context

    def check_health(self) -> None:
        """Raise Unreachable if the SuperLink does not answer."""
        self._request("GET", "/health", b"", {}, 2)

    def run_state(self, run: int) -> str:
        """pending, running, completed, failed or stopped."""
        answer = self._call("control/list-runs", control.ListRunsRequest(run_id=run), control.ListRunsResponse)
        status = answer.run_dict[run].status
        if status.status == "finished":
            return str(status.sub_status)
        return "running" if status.status == "running" else "pending"

    def stop_run(self, run: int) -> None:
        """Stop a run, if it has not ended already."""
        with contextlib.suppress(RunError):
            self._call("control/stop-run", control.StopRunRequest(run_id=run), control.StopRunResponse)

    def count_online(self) -> int:
        """How many nodes are connected."""
        answer = self._call("control/list-nodes", control.ListNodesRequest(), control.ListNodesResponse)
        return sum(node.status == "online" for node in answer.nodes_info)

    def register_node(self, name: str, key: ec.EllipticCurvePrivateKey) -> int:
        """Allow a node to connect; returns Flower's id of it."""
        request = control.RegisterNodeRequest(public_key=_public_pem(key), name=name)
        return int(self._call("control/register-node", request, control.RegisterNodeResponse).node_id)

    def deactivate_node(self, node_id: int, key: ec.EllipticCurvePrivateKey) -> None:
        """Tell the SuperLink, signed with the node's key, that a node is gone. Without it the SuperLink counts a node
        that crashed as connected for a minute, and refuses it when it returns."""
        now = datetime.datetime.now(datetime.UTC).isoformat()
        headers = {
            "flwr-public-key": b64encode(_public_pem(key)).decode(),
            "flwr-timestamp": now,
            "flwr-signature": b64encode(key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        }
        with contextlib.suppress(RunError):  # it was gone already
            request = fleet.DeactivateNodeRequest(node_id=node_id)
            self._call("fleet/deactivate-node", request, fleet.DeactivateNodeResponse, headers)

    def _call(self, path: str, request: Message, answer: type[M], headers: dict[str, str] | None = None) -> M:
        """POST a protobuf message; returns the response, which is an `answer`."""
        kind = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"} | (headers or {})
        body = self._request("POST", f"/v1/{path}", request.SerializeToString(), kind, TIMEOUT_SECONDS)
        response: M = answer.FromString(body)
        return response

    def _request(self, verb: str, path: str, body: bytes, headers: dict[str, str], seconds: float) -> bytes:
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        connection: http.client.HTTPConnection
        if self._context:
            connection = http.client.HTTPSConnection(host, int(port), timeout=seconds, context=self._context)
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=seconds)
        with contextlib.closing(connection):
            try:
                connection.request(verb, path, body, headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"The SuperLink at {self.address} does not answer ({error}).") from error
        if response.status != 200:
            text = content[:300].decode(errors="replace")
            raise RunError(f"The SuperLink at {self.address} refused {path} (HTTP {response.status}): {text}")
        return content


def _public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
