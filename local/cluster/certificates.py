"""Create the cluster's certificate authority, certificates and tokens, which `pki/` keeps between runs."""

from __future__ import annotations

import datetime
import ipaddress
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local.cluster.node_addresses import BRIDGE_ADDRESS, MAX_NODES, SERVICE_ADDRESS, plan_nodes
from local.files_and_locks import write_file_atomically
from local.paths import EKS_TOKEN, STATE

PKI = STATE / "pki"
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


def _encode_private_key(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # tolerates a clock that was set back a little
        .not_valid_after(now + _LIFETIME)
    )


def _subject_name(organisation: str, common: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _are_valid() -> bool:
    """Return whether the folder has all keys and certificates, and the authority stays valid for a month."""
    wanted = [
        "ca.key",
        "ca.crt",
        "sa.key",
        "sa.pub",
        *(f"{n}.{end}" for n in CLIENTS for end in ("key", "crt")),
    ]
    if not all((PKI / name).is_file() for name in wanted):
        return False
    authority = x509.load_pem_x509_certificate((PKI / "ca.crt").read_bytes())
    return authority.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > _RENEW_BEFORE


def ensure_certificates() -> bool:
    """Create keys and certificates unless valid ones exist; return whether they were created."""
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    if _are_valid():
        return False
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _subject_name("", "paddle-training local")
    authority = (
        _certificate_builder(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    hosts: list[x509.GeneralName] = [
        *map(x509.DNSName, ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")),
        x509.DNSName("kubernetes.default.svc.cluster.local"),
        *(x509.IPAddress(ipaddress.ip_address(a)) for a in ("127.0.0.1", SERVICE_ADDRESS, BRIDGE_ADDRESS)),
    ]
    for name, (organisation, common) in CLIENTS.items():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _certificate_builder(_subject_name(organisation, common), authority_name, key.public_key())
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(authority_key, hashes.SHA256())
        )
        write_file_atomically(PKI / f"{name}.key", _encode_private_key(key), 0o600)
        write_file_atomically(
            PKI / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o600
        )
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = signer.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_file_atomically(PKI / "sa.key", _encode_private_key(signer), 0o600)
    write_file_atomically(PKI / "sa.pub", public, 0o600)
    write_file_atomically(PKI / "ca.key", _encode_private_key(authority_key), 0o600)
    write_file_atomically(
        PKI / "ca.crt", authority.public_bytes(serialization.Encoding.PEM), 0o600
    )  # last, so that its presence means that all files are complete
    return True


def ensure_token() -> None:
    """Create a random bearer token for the user `eks-emulated`, with which tests emulate an EKS cluster."""
    token = EKS_TOKEN.read_text().strip() if EKS_TOKEN.is_file() else ""
    token = token or secrets.token_urlsafe(32)
    write_file_atomically(EKS_TOKEN, token + "\n", 0o600)
    write_file_atomically(PKI / "tokens.csv", f'{token},eks-emulated,eks-emulated,"system:masters"\n', 0o600)
