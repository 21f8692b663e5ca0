# SPDX-License-Identifier: Apache-2.0
"""Client certificates as credentials (tenancy contract, section 9).

A TOML file maps certificate subjects to identities:

    ["CN=billing,O=Acme"]
    project = "acme"
    roles = ["member"]
    scopes = ["produce:orders.*"]

The HTTP server verifies the certificate and passes its subject and expiry in the WSGI environment.
"""

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from zq.clock import Clock
from zq.errors import Invalid, StartRefused
from zq.model import scopes
from zq.model.identity import CERTIFICATE, MEMBER, Identity
from zq.model.limits import project_id

OPTION: Final = "[auth] certificates"


class CertificateEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a certificate subject, as configured in the certificate file."""

    project: str
    roles: tuple[str, ...] = (MEMBER,)
    scopes: list[str] | None = None


class Certificates:
    """A map from certificate subjects to identities, read from a file.

    The constructor raises ``StartRefused`` if the file is not valid.
    """

    def __init__(self, path: Callable[[], str], clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._identities = read_identities(path())

    def reload(self) -> None:
        """Read the certificate file again. If it is invalid, raise ``StartRefused`` and keep the previous content."""
        self._identities = read_identities(self._path())

    def identity(self, env: Mapping[str, Any]) -> Identity | None:
        """Return the identity of the request's certificate, or ``None`` if the certificate is unknown or expired."""
        subject, until = env.get(CERTIFICATE) or ("", 0.0)
        found = self._identities.get(subject)
        if found is None or until <= self._clock.now():
            return None
        return structs.replace(found, expires=until)


def read_identities(path: str) -> dict[str, Identity]:
    """Read a certificate file and return identities by subject. Raises ``StartRefused`` if the file is not valid."""
    try:
        with open(path, "rb") as file:
            given = msgspec.convert(tomllib.load(file), dict[str, CertificateEntry])
        return {subject: _identity(subject, entry) for subject, entry in given.items()}
    except OSError as error:
        raise StartRefused(f"{OPTION} cannot be read: {path}: {error.strerror}.") from error
    except (ValueError, Invalid) as error:
        raise StartRefused(f"{OPTION} must define the project of each subject: {path}: {error}") from error


def _identity(subject: str, entry: CertificateEntry) -> Identity:
    project_id(entry.project)
    chosen = None if entry.scopes is None else tuple(entry.scopes)
    if chosen == ():
        raise ValueError("scopes must not be empty: omit them to allow the whole project.")
    scopes.parse(chosen)
    return Identity(
        project=entry.project,
        user=subject,
        roles=frozenset(role.lower() for role in entry.roles),
        scopes=chosen,
        credential=subject,
    )
