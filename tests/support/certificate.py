"""TLS certificates for servers on this machine."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate for this machine's loopback names, beside its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("localhost")
    certificate = _of_loopback(name, name, key).sign(key, hashes.SHA256())
    return _written(folder, certificate, key)


def make_eks_certificate(folder: Path) -> Path:
    """A server's as EKS has them, without key identifiers; its authority's is beside it, as ``ca.crt``."""
    own, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = _named("kubernetes")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        _builder(name, name, own)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(own, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    certificate = _of_loopback(_named("kube-apiserver"), name, key).sign(own, hashes.SHA256())
    return _written(folder, certificate, key)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
    )


def _of_loopback(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        _builder(subject, issuer, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )


def _written(folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
    """The certificate's file; its key is beside it."""
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(pem))
    path.with_suffix(".key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return path
