# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, which are usually valid for a day and satisfy the strict checks of Python 3.13."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
THIS_MACHINE = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
)


def issue(
    folder: Path,
    name: str,
    subject: str,
    authority: str = "",
    days: float = 1,
    curve: type[ec.EllipticCurve] = ec.SECP256R1,
    purpose: x509.ObjectIdentifier | None = None,
) -> Path:
    """Write ``name.pem`` and ``name.key``, and return the path of the certificate.

    ``subject`` is in the notation of RFC 4514. ``authority`` is the name of the issuer's certificate in the folder;
    without it, the certificate is self-signed and an authority. The certificate is valid for this machine, expires
    after ``days``, and has the extended key usage ``purpose``.
    """
    key, now = ec.generate_private_key(curve()), datetime.now(UTC)
    its_name = x509.Name.from_rfc4514_string(subject)
    signer, issuer = key, its_name
    if authority:
        read = serialization.load_pem_private_key((folder / f"{authority}.key").read_bytes(), None)
        assert isinstance(read, ec.EllipticCurvePrivateKey)
        signer, issuer = read, x509.load_pem_x509_certificate((folder / f"{authority}.pem").read_bytes()).subject
    builder = (
        x509.CertificateBuilder(issuer, its_name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(THIS_MACHINE, critical=False)
        .add_extension(x509.BasicConstraints(ca=not authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not authority:
        signs = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True}
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        none = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
        builder = builder.add_extension(x509.KeyUsage(**signs, **none), critical=True)
    if purpose is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    made = folder / f"{name}.pem"
    made.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(PEM))
    secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    return made
