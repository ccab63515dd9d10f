"""Create the cluster's certificate authority, certificates and tokens. They stay in `pki/` between runs."""

from __future__ import annotations

import datetime
import ipaddress
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local.cluster.daemon_configs import BRIDGE_ADDRESS, MAX_NODES, PKI, SERVICE_ADDRESS, plan_nodes
from local.files_and_locks import write_file_atomically
from local.paths import EKS_TOKEN

_LIFETIME = datetime.timedelta(days=3650)
_RENEW_BEFORE = datetime.timedelta(days=30)

# name → (organisation, common name), which the API server uses as group and user
CLIENTS = {
    "apiserver": ("", "kube-apiserver"),
    "admin": ("system:masters", "local-admin"),
    "controller-manager": ("", "system:kube-controller-manager"),
    "scheduler": ("", "system:kube-scheduler"),
    "etcd": ("", "etcd"),
    "coredns": ("system:masters", "coredns"),
    **{n.name: ("system:nodes", f"system:node:{n.name}") for n in plan_nodes(MAX_NODES)},
}
_HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", SERVICE_ADDRESS, BRIDGE_ADDRESS)


def _are_valid() -> bool:
    """Return whether all keys and certificates exist, and the authority's certificate stays valid for a month."""
    pairs = [f"{name}.{end}" for name in CLIENTS for end in ("key", "crt")]
    if not all((PKI / name).is_file() for name in ("ca.key", "ca.crt", "sa.key", "sa.pub", *pairs)):
        return False
    authority = x509.load_pem_x509_certificate((PKI / "ca.crt").read_bytes())
    return authority.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > _RENEW_BEFORE


def _write_key(name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_file_atomically(PKI / f"{name}.key", content, 0o600)


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Return the builder of a certificate. Its validity begins an hour before now and ends in ten years."""
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    # The start tolerates a clock that was set back a little.
    return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + _LIFETIME)


def ensure_certificates() -> None:
    """Create keys and certificates unless valid ones exist."""
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    if _are_valid():
        return
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "paddle-training local")])
    hosts = [x509.DNSName(host) for host in (*_HOSTS, "kubernetes.default.svc.cluster.local")]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    for name, (organisation, common) in CLIENTS.items():
        parts = ((NameOID.ORGANIZATION_NAME, organisation), (NameOID.COMMON_NAME, common))
        subject = x509.Name([x509.NameAttribute(oid, text) for oid, text in parts if text])
        key = ec.generate_private_key(ec.SECP256R1())
        builder = certificate_builder(subject, authority, key).add_extension(usage, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([*hosts, *addresses]), critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        _write_key(name, key)
        write_file_atomically(PKI / f"{name}.crt", certificate.public_bytes(Encoding.PEM), 0o600)
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key("sa", signer)
    public = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_file_atomically(PKI / "sa.pub", public, 0o600)
    _write_key("ca", authority_key)
    own = certificate_builder(authority, authority, authority_key)
    own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    content = own.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM)
    write_file_atomically(
        PKI / "ca.crt", content, 0o600
    )  # last: its presence means that all files are complete


def ensure_token() -> None:
    """Ensure that the user `eks-emulated` has a random bearer token. Tests emulate an EKS cluster with this user."""
    token = EKS_TOKEN.read_text().strip() if EKS_TOKEN.is_file() else ""
    token = token or secrets.token_urlsafe(32)
    write_file_atomically(EKS_TOKEN, token + "\n", 0o600)
    write_file_atomically(PKI / "tokens.csv", f'{token},eks-emulated,eks-emulated,"system:masters"\n', 0o600)
