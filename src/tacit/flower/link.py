"""Calls to a SuperLink from this process: who is there, how a run does, a node's registration and its leave.

Flower's own command does the same, and takes a second of work for every call. Messages are Flower's protobuf over
HTTPS, as its command sends them. No proxy is asked, since the SuperLink is on this machine.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ssl
from base64 import b64encode
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..errors import RunError

SECONDS = 30


class Unreachable(RunError):
    """The SuperLink does not answer."""


class Link:
    """A SuperLink at `address` (host:port), whose certificate is checked with `context`."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        self.address, self._context = address, context

    def health(self) -> None:
        """Nothing, or Unreachable."""
        self._call("GET", "/health", b"", {}, 2)

    def run(self, number: int) -> tuple[str, str]:
        """(pending, running, completed, failed or stopped; why it failed)."""
        from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse

        answer = self._ask("/v1/control/list-runs", ListRunsRequest(run_id=number), ListRunsResponse())
        status = answer.run_dict[number].status
        if status.status == "finished":
            return str(status.sub_status), str(status.details)
        return ("running" if status.status == "running" else "pending"), ""

    def stop(self, number: int) -> None:
        """End a run. Nothing happens where it has ended already."""
        from flwr.proto.control_pb2 import StopRunRequest, StopRunResponse

        with contextlib.suppress(RunError):
            self._ask("/v1/control/stop-run", StopRunRequest(run_id=number), StopRunResponse())

    def online(self) -> int:
        """How many nodes are connected."""
        from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

        answer = self._ask("/v1/control/list-nodes", ListNodesRequest(), ListNodesResponse())
        return sum(node.status == "online" for node in answer.nodes_info)

    def register(self, name: str, key: ec.EllipticCurvePrivateKey) -> int:
        """Let a node in; Flower's number of it."""
        from flwr.proto.control_pb2 import RegisterNodeRequest, RegisterNodeResponse

        request = RegisterNodeRequest(public_key=_public(key), name=name)
        return int(self._ask("/v1/control/register-node", request, RegisterNodeResponse()).node_id)

    def sign_off(self, number: int, key: ec.EllipticCurvePrivateKey) -> None:
        """Say in a node's name, with its key, that it is away. After a crash the SuperLink would believe for a minute
        that it is there, and refuse it when it comes back."""
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest, DeactivateNodeResponse

        now = datetime.datetime.now(datetime.UTC).isoformat()
        headers = {
            "flwr-public-key": b64encode(_public(key)).decode(),
            "flwr-timestamp": now,
            "flwr-signature": b64encode(key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        }
        with contextlib.suppress(RunError):  # it was away already
            request = DeactivateNodeRequest(node_id=number)
            self._ask("/v1/fleet/deactivate-node", request, DeactivateNodeResponse(), headers)

    def _ask(self, path: str, request: Any, answer: Any, headers: dict[str, str] | None = None) -> Any:
        kind = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
        answer.ParseFromString(self._call("POST", path, request.SerializeToString(), kind | (headers or {}), SECONDS))
        return answer

    def _call(self, verb: str, path: str, body: bytes, headers: dict[str, str], seconds: float) -> bytes:
        host, _, port = self.address.rpartition(":")
        link: http.client.HTTPConnection
        if self._context:
            link = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=seconds, context=self._context)
        else:
            link = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=seconds)
        with contextlib.closing(link):
            try:
                link.request(verb, path, body, headers)
                answer = link.getresponse()
                told = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"The SuperLink at {self.address} does not answer ({error}).") from error
        if answer.status != 200:
            words = told[:300].decode(errors="replace")
            raise RunError(f"The SuperLink at {self.address} refused {path} (HTTP {answer.status}): {words}")
        return told


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
