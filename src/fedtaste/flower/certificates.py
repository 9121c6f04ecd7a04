"""TLS certificates of a federation's server, and the keys by which nodes authenticate.

    <authority>/ca.key      signs server certificates; stays with the operator and is not needed to run anything
    <authority>/ca.crt      with which nodes check the server; public
    <server>/server.key, server.crt, ca.crt      all that a SuperLink needs
    <nodes>/<name>          a node's private key (OpenSSH, P-384); it stays on that node
    <nodes>/<name>.pub      its public key, which is registered with the SuperLink

Private files have mode 0600 and their folders 0700; files are replaced atomically. A server certificate is valid for at
most 825 days, the longest that all TLS libraries accept. `issue_server` issues a new one of the same authority, and the
nodes need nothing new. Certificates have the extensions that RFC 5280 requires, since Python 3.13 checks them strictly.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
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

from fedtaste.errors import SettingError
from fedtaste.files.atomic import write_atomically

PrivateKey = ec.EllipticCurvePrivateKey
LOOPBACK = ("127.0.0.1", "localhost")  # names in every server certificate
LOOPBACK_HOSTS = (*LOOPBACK, "::1")
SERVER_DAYS = 825
AUTHORITY_DAYS = 3650
BACKDATE = datetime.timedelta(hours=1)  # clocks of machines differ
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{LABEL}(\.{LABEL})*")


@dataclass(frozen=True)
class Server:
    """The files that `flower-superlink` needs."""

    certificate: Path
    key: Path
    authority: Path


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def make_authority(folder: Path) -> Path:
    """Create an authority, or keep the one that exists and that nodes trust; returns its certificate."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() and key.exists():
        _load_authority(folder)
        return certificate
    if certificate.exists() or key.exists():
        there, missing = (certificate, key) if certificate.exists() else (key, certificate)
        raise SettingError(
            f"{there} exists, but {missing} does not. Restore {missing.name} from a copy, or remove {there} to create "
            "a new authority (nodes then need its ca.crt)."
        )
    private_folder(folder)
    secret = ec.generate_private_key(ec.SECP384R1())
    label = f"fedtaste federation {x509.random_serial_number():x}"[:64]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
    signed = (
        _builder(name, name, secret, secret, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(secret, hashes.SHA384())
    )
    write_atomically(key, _private_pem(secret), 0o600)
    write_atomically(certificate, signed.public_bytes(Encoding.PEM))
    return certificate


def issue_server(authority: Path, folder: Path, names: Sequence[str] = LOOPBACK) -> Server:
    """Issue a new key and a certificate for these host names and addresses, and replace the old ones. To rotate, call
    this and restart the SuperLink; nodes keep their ca.crt."""
    signer, issuer = _load_authority(authority)
    if issuer.not_valid_after_utc < _now() + datetime.timedelta(days=1):
        raise SettingError(
            f"The authority in {authority} expires on {issuer.not_valid_after_utc:%Y-%m-%d}. Create a new one in "
            "another folder, give its ca.crt to all nodes, then issue the server's certificate."
        )
    days = min(SERVER_DAYS, (issuer.not_valid_after_utc - _now()).days)
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedtaste server")])
    signed = (
        _builder(subject, issuer.subject, secret, signer, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(signer, hashes.SHA384())
    )
    private_folder(folder)
    server = Server(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    write_atomically(server.key, _private_pem(secret), 0o600)
    write_atomically(server.certificate, signed.public_bytes(Encoding.PEM))
    write_atomically(server.authority, issuer.public_bytes(Encoding.PEM))
    return server


def make_node_key(folder: Path, name: str) -> Path:
    """Create a node's private key, with the public one beside it (.pub); returns its path. An existing key is kept,
    since the SuperLink identifies the node by it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise SettingError(f'"{name}" is not a valid name of a node. Use at most 64 letters, digits, dots and dashes.')
    private_folder(folder)
    path = folder / name
    if path.exists():
        secret = load_node_key(path)
    else:
        secret = ec.generate_private_key(ec.SECP384R1())
        write_atomically(path, secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    path.chmod(0o600)
    public = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(public_key_path(path), public + f" {name}\n".encode())
    return path


def public_key_path(path: Path) -> Path:
    """Path of the public key of a private key."""
    return path.with_name(f"{path.name}.pub")


def load_node_key(path: Path) -> PrivateKey:
    """Read a private key that `make_node_key` wrote."""
    try:
        secret = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"{path} cannot be read as a node's private key ({error}). Restore it from a copy, or remove it and its "
            ".pub to create a new one, which must be registered."
        ) from error
    if not isinstance(secret, PrivateKey):
        raise SettingError(f"{path} is not a key on an elliptic curve. Use one that `make_node_key` wrote.")
    return secret


def _load_authority(folder: Path) -> tuple[PrivateKey, x509.Certificate]:
    try:
        secret = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"The authority in {folder} cannot be read ({error}). Restore ca.key and ca.crt from a copy."
        ) from error
    if not isinstance(secret, PrivateKey) or secret.public_key() != certificate.public_key():
        raise SettingError(f"ca.key and ca.crt in {folder} do not match. Restore both from one copy.")
    return secret, certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, secret: PrivateKey, signer: PrivateKey, days: int
) -> x509.CertificateBuilder:
    public = secret.public_key()
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - BACKDATE)
        .not_valid_after(_now() + datetime.timedelta(days=days) - BACKDATE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    names += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not HOST_NAME.fullmatch(name):
            raise SettingError(
                f'"{name}" is neither a host name nor an address, such as server.example.org or 10.0.0.5.'
            ) from None
        return x509.DNSName(name)


def _private_pem(secret: PrivateKey) -> bytes:
    return secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
