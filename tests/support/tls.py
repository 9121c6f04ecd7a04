"""TLS handshakes in memory, for the tests of certificates."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path


def handshake(certificate: Path, key: Path, authority: Path, name: str = "127.0.0.1") -> None:
    """A client that trusts `authority` meets a server of this name, with the strictest checks of Python."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=name)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for end in (client_end, server_end):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert client_end.version() and client_end.getpeercert()
