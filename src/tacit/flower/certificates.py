"""Certificates and keys of a federation: who the server is, and which nodes may speak to it.

    <authority>/ca.key      signs server certificates; stays with the operator and is not needed to run anything
    <authority>/ca.crt      what nodes check the server with; public
    <server>/server.key, server.crt, ca.crt      all that a SuperLink needs, of one authority
    <nodes>/<name>          a node's private key (OpenSSH, P-384), made on that node and kept there
    <nodes>/<name>.pub      its public key, which is registered with the SuperLink

Private files have mode 0600, their folders 0700, and a file is there whole or not at all. A server certificate ends
after 825 days at most, which is the longest that all TLS libraries accept; a new one of the same authority is one call
of `issue_server`, and the nodes need nothing new. Extensions are those that RFC 5280 asks for, since Python 3.13 checks
them strictly.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import SettingError
from ..wholefile import write_atomically

LOOPBACK = ("127.0.0.1", "localhost")
SERVER_DAYS = 825
AUTHORITY_DAYS = 3650
RENEW_DAYS = 30  # a certificate that ends sooner is not used for a new federation
BACK = datetime.timedelta(hours=1)  # clocks of machines differ
NAME = re.compile(r"(?=.{1,253}$)(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}"
                  r"[A-Za-z0-9])?)*")  # fmt: skip


@dataclass(frozen=True)
class Server:
    """Files of a server: what `flower-superlink` is given."""

    certificate: Path
    key: Path
    authority: Path


def private_folder(folder: Path) -> Path:
    """A folder that only its owner can look into."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, and at no moment readable by anybody else."""

    def write(part: Path) -> None:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)

    write_atomically(path, write)


def make_authority(folder: Path, *, days: int = AUTHORITY_DAYS) -> Path:
    """The authority's certificate. One that is there is kept: nodes trust it already."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() and key.exists():
        _authority(folder)
        return certificate
    if certificate.exists() or key.exists():
        there, missing = (certificate, key) if certificate.exists() else (key, certificate)
        raise SettingError(
            f"{there} is there, but {missing} is not; expected both or none. Restore {missing.name} from a copy, or "
            f"remove {there} to make a new authority (nodes then need its ca.crt)."
        )
    private_folder(folder)
    secret = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"tacit federation {x509.random_serial_number():x}"[:64])]
    )
    usage = _usage(key_cert_sign=True, crl_sign=True)
    made = (
        _builder(name, name, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key()), critical=False)
        .sign(secret, hashes.SHA384())
    )
    write_private(key, _secret_pem(secret))
    write_atomically(certificate, made.public_bytes(Encoding.PEM))
    return certificate


def issue_server(authority: Path, folder: Path, names: Sequence[str] = LOOPBACK, *, days: int = SERVER_DAYS) -> Server:
    """A new key and a certificate of the authority for these host names and addresses; the old ones are replaced.

    Rotation is this call and a restart of the SuperLink. Nodes go on with the ca.crt that they have.
    """
    if not 1 <= days <= SERVER_DAYS:
        raise SettingError(f"A server certificate of {days} days was asked for; expected 1 to {SERVER_DAYS}.")
    signer, issuer = _authority(authority)
    if issuer.not_valid_after_utc < _now() + datetime.timedelta(days=1):
        raise SettingError(
            f"The authority in {authority} ends on {issuer.not_valid_after_utc:%Y-%m-%d}. Make a new one in another "
            "folder, give its ca.crt to all nodes, then issue the server's certificate."
        )
    days = min(days, (issuer.not_valid_after_utc - _now()).days)
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit server")])
    made = (
        _builder(subject, issuer.subject, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    private_folder(folder)
    server = Server(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    write_private(server.key, _secret_pem(secret))
    write_atomically(server.certificate, made.public_bytes(Encoding.PEM))
    write_atomically(server.authority, issuer.public_bytes(Encoding.PEM))
    return server


def server_for(authority: Path, folder: Path, names: Sequence[str] = LOOPBACK) -> Server:
    """The server certificate that is there if it serves, otherwise a new one: it must be of this authority, for all
    these names, belong to its key (a crash between the two files parts them) and hold for a month."""
    server = Server(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    try:
        certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
        secret = load_pem_private_key(server.key.read_bytes(), None)
        issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
        certificate.verify_directly_issued_by(issuer)
        there = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        serves = (
            secret.public_key() == certificate.public_key()
            and x509.load_pem_x509_certificate(server.authority.read_bytes()) == issuer
            and all(_general(name) in there for name in names)
            and certificate.not_valid_after_utc > _now() + datetime.timedelta(days=RENEW_DAYS)
        )
    except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        serves = False
    return server if serves else issue_server(authority, folder, names)


def make_node_key(folder: Path, name: str) -> Path:
    """A node's private key; the public one is beside it with the ending .pub. A key that is there is kept, since it is
    what the SuperLink knows the node by."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise SettingError(f'"{name}" is not the name of a node. Use letters, digits, dots, dashes, 64 at most.')
    private_folder(folder)
    path = folder / name
    if path.exists():
        secret = load_node_key(path)
    else:
        secret = ec.generate_private_key(ec.SECP384R1())
        write_private(path, secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    public = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(public_of(path), public + f" {name}\n".encode())
    return path


def public_of(path: Path) -> Path:
    """Where the public key of a private one is."""
    return path.with_name(f"{path.name}.pub")


def load_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        secret = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"{path} cannot be read as a node's private key ({error}). Restore it from a copy, or remove it and its "
            ".pub to make a new one, which must be registered again."
        ) from error
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{path} is not a key on an elliptic curve; expected one that `make_node_key` wrote.")
    return secret


def ends(path: Path) -> datetime.datetime:
    """When a certificate ends (UTC)."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as a certificate ({error}). Expected a PEM file.") from error


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        secret = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"The authority in {folder} cannot be read ({error}). Expected ca.key and ca.crt; restore them from a copy."
        ) from error
    if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != certificate.public_key():
        raise SettingError(f"ca.key and ca.crt in {folder} do not belong together. Restore both from one copy.")
    return secret, certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - BACK)
        .not_valid_after(_now() + datetime.timedelta(days=days) - BACK)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    rest = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**(dict.fromkeys((*names, *rest), False) | wanted))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not NAME.fullmatch(name):
            raise SettingError(
                f'"{name}" is neither a host name nor an address. Expected server.example.org or 10.0.0.5, for example.'
            ) from None
        return x509.DNSName(name)


def _secret_pem(secret: ec.EllipticCurvePrivateKey) -> bytes:
    return secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
