# SPDX-License-Identifier: Apache-2.0
"""Checks of the requirements that a server needs to start. The checks do not open the store.

``zq-server --check`` and ``zq-server doctor`` run these checks. A check raises ``StartRefused`` if the server would not
start.
"""

import os
import ssl
import stat
from collections.abc import Callable
from typing import Final

from zq.auth import check as check_auth
from zq.auth.master_keys import read_keys
from zq.auth.policy import Policy
from zq.clock import local_time
from zq.diagnosis import Finding, fail, judge_certificate, ok, warn
from zq.serving import startup
from zq.serving.metrics.token import read_token
from zq.serving.sections import SECTIONS
from zq.serving.settings import Settings, misspelt_variables
from zq.serving.tls import ServerTls, read_expiry
from zq.storage import find_driver

# Permissions that a private key file should not have: all of other users, and write access of its group.
EXPOSED: Final = 0o037


def check_variables(_chosen: Settings) -> Finding:
    ignored = [*misspelt_variables(os.environ)]
    if ignored:
        return warn(" ".join(f"{sentence.rstrip('.?')}." for sentence in ignored), "Correct or remove it.")
    return ok("All options are valid.")


def check_access(chosen: Settings) -> Finding:
    warnings = startup.check_exposure(chosen)
    if warnings:
        return warn(" ".join(warnings), "See operations.md, Network access.")
    reach = "this machine only" if startup.is_loopback(chosen.server.bind) else "other machines"
    return ok(f"Authentication is {chosen.auth.strategy or 'off'}; the server is reachable from {reach}.")


def check_driver(chosen: Settings) -> Finding:
    find_driver(chosen.storage.uri)
    return ok(f"The driver for {chosen.storage.uri.partition(':')[0]}: stores is installed.")


def check_engine(chosen: Settings) -> Finding:
    startup.check_engine(chosen.server.engine)
    return ok(f"The HTTP server {chosen.server.engine} is installed.")


def check_policy(chosen: Settings) -> Finding:
    Policy(chosen.auth.policy_file)
    return ok(f"The policy is {chosen.auth.policy_file or 'the built-in table'}.")


def read_secrets(chosen: Settings) -> int:
    """Read all secrets except the private key of TLS. Return the number of keys that encrypt messages."""
    check_auth(chosen.auth, chosen.path)
    read_token(chosen.metrics.token_file)
    for section in SECTIONS:
        section.check_files(chosen.of(section))
    return len(read_keys(chosen.transport.message_encryption_key_file))


def check_keys(chosen: Settings) -> Finding:
    count, key = read_secrets(chosen), chosen.server.tls_key
    if key and os.path.exists(key) and (mode := stat.S_IMODE(os.stat(key).st_mode)) & EXPOSED:
        return warn(f"Other users may read the private key {key}, which has mode {mode:04o}.", f"Run: chmod 600 {key}")
    return ok(f"The files with secrets are valid and private. Keys for message encryption: {count}.")


def check_certificate(chosen: Settings) -> Finding:
    if not chosen.server.tls_cert:
        return ok("The server does not use TLS.")
    ServerTls(chosen.server)
    advice = "Renew it, and send the server SIGHUP."
    certificate = chosen.server.tls_cert
    try:
        expires = read_expiry(certificate, chosen.server.tls_key)
    except ssl.SSLCertVerificationError as error:
        return fail(f"Clients reject {certificate}: {error.verify_message}.", advice)
    except ssl.SSLError as error:
        return warn(
            f"Python's default TLS client cannot connect with {certificate}: {error.reason}.",
            "Use an RSA key or an EC key on the curve prime256v1.",
        )
    return judge_certificate(expires - local_time(), f"The certificate {certificate}", advice)


def check_client_authority(chosen: Settings) -> Finding:
    authority = chosen.server.tls_client_ca
    if not authority:
        return ok("The server does not require client certificates.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority)
    ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs()]
    if not ends:
        return warn(f"{authority} contains no certificate of an authority.", "Add the issuer of the clients.")
    advice = "Add its successor, and send the server SIGHUP. When it expires, clients with certificates cannot connect."
    first, last = min(ends) - local_time(), max(ends) - local_time()
    if first <= 0 < last:
        return warn(f"A certificate in {authority} has expired, but another one is valid.", "Remove the expired one.")
    return judge_certificate(first, f"A certificate in {authority}", advice)


# The checks by name, in the order of the start.
REQUIREMENTS: Final[dict[str, Callable[[Settings], Finding]]] = {
    "options": check_variables,
    "access": check_access,
    "engine": check_engine,
    "driver": check_driver,
    "policy": check_policy,
    "keys": check_keys,
    "certificate": check_certificate,
    "client authority": check_client_authority,
}
