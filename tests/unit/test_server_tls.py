# SPDX-License-Identifier: Apache-2.0
"""The expiry of the server's certificate in metrics."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ExtendedKeyUsageOID

from tests.certificates import issue
from zq.clock import local_time
from zq.serving.settings.sections import ServerOptions
from zq.serving.tls import ServerTls


def options(folder: Path) -> ServerOptions:
    return ServerOptions(tls_cert=f"{folder}/server.pem", tls_key=f"{folder}/server.key")


def test_the_expiry_is_read_again_with_the_files(tmp_path: Path) -> None:
    issue(tmp_path, "server", "CN=first")
    tls = ServerTls(options(tmp_path))
    assert tls.expires == pytest.approx(local_time() + 86_400, abs=60)
    issue(tmp_path, "server", "CN=second", days=3)
    tls.reload()
    assert tls.expires == pytest.approx(local_time() + 3 * 86_400, abs=60)


def test_the_expiry_of_an_expired_certificate_is_0(tmp_path: Path) -> None:
    issue(tmp_path, "server", "CN=old", days=-0.5)
    assert ServerTls(options(tmp_path)).expires == 0


def test_the_expiry_of_an_unusual_key_is_unknown(tmp_path: Path) -> None:
    issue(tmp_path, "server", "CN=curved", curve=ec.BrainpoolP256R1)
    assert ServerTls(options(tmp_path)).expires is None


def test_the_expiry_of_a_certificate_for_clients_is_unknown(tmp_path: Path) -> None:
    issue(tmp_path, "server", "CN=client", purpose=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert ServerTls(options(tmp_path)).expires is None


def test_the_expiry_is_unknown_if_a_file_vanishes_during_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue(tmp_path, "server", "CN=first")
    tls = ServerTls(options(tmp_path))
    context = tls.context
    monkeypatch.setattr("zq.serving.tls._context", lambda _: context)
    (tmp_path / "server.key").unlink()
    tls.reload()
    assert tls.expires is None
