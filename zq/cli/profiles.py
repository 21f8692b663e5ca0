# SPDX-License-Identifier: Apache-2.0
"""Connection settings from options, environment variables, profiles and stored logins, in order of precedence."""

import os
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq.cli.output import note, replace_controls
from zq.client.credentials import check_private
from zq.errors import Invalid
from zq.logs import without_secrets

# Default URL of the server.
URL: Final = "http://localhost:8888"
# The members of a profile.
MEMBERS: Final = ("url", "project", "token", "client_id")


class Connection(Struct, frozen=True):
    """The server, project and credentials to use; "" = not set."""

    url: str = URL
    project: str = ""
    token: str = ""
    client_id: str = ""

    @property
    def shown_url(self) -> str:
        """The URL without user and password."""
        return strip_user(self.url)


class ProfileFile(Struct):
    """The content of the configuration file."""

    profile: str | None = None
    profiles: dict[str, Any] = {}


def strip_user(url: str) -> str:
    """Remove user and password from a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL
        return without_secrets(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def config_file() -> Path:
    """Return the default path of the configuration file."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "zq" / "config.toml"


class Login(Struct, frozen=True):
    """A token that ``zq login`` has stored. It is sent only to the server at ``url``."""

    url: str
    token: str
    project: str = ""


def token_file(path: Path) -> Path:
    """Return the path of the file with the logins, which is next to the configuration file."""
    return path.with_suffix(".tokens")


def active_profile_name(profile: str | None, path: Path) -> str:
    """Return the name of the active profile, or ""."""
    document = read_profiles(path) or ProfileFile()
    return profile or document.profile or ("default" if "default" in document.profiles else "")


def read_logins(path: Path) -> dict[str, Login]:
    """Read the logins, by profile. Raises ``UsageError`` if other users can read the file."""
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()).st_mode)
            return msgspec.json.decode(file.read(), type=dict[str, Login])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except Invalid as error:
        raise click.UsageError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(
            f"{path} is not a valid file of stored tokens. Remove the file, and run zq login again."
        ) from error


def write_logins(path: Path, stored: Mapping[str, Login]) -> None:
    """Replace the file of logins atomically. Only its owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as fresh:  # mode 0600
        fresh.write(msgspec.json.encode(stored))
    os.replace(fresh.name, path)


def _with_login(found: Connection, profile: str | None, path: Path) -> Connection:
    login = None if found.token else read_logins(token_file(path)).get(active_profile_name(profile, path))
    if login is None or login.url.rstrip("/") != found.url.rstrip("/"):
        return found
    return replace(found, token=login.token, project=found.project or login.project)


def connection(given: Mapping[str, Any], profile: str | None, file: Path | None, stored: bool = True) -> Connection:
    """Combine the settings in ``given``, the profile and the stored login.

    A stored token is used only for the server URL with which it was stored. Raises ``UsageError`` if a setting is not
    valid.

    Args:
        given: Settings from options and environment variables, which have precedence.
        profile: The name of the profile; ``None`` = the default profile.
        file: The configuration file; ``None`` = the default path.
        stored: If false, the tokens of the profile and of the stored login are ignored.
    """
    path = file or config_file()
    own = profile_additions(given, read_profile(profile, file))
    if not stored:
        own.pop("token", None)
    if "token" in own:
        _warn_of_readers(path)
    found = Connection(**{**own, **{name: value for name in MEMBERS if (value := given.get(name))}})
    return check_connection(_with_login(found, profile, path) if stored else found)


def profile_additions(given: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """Return the members of the profile ``own`` that ``given`` does not override.

    If ``given`` has the URL of another server, omit the profile's token.
    """
    elsewhere = "url" in own and (given.get("url") or own["url"]).rstrip("/") != own["url"].rstrip("/")
    left = {name: value for name, value in own.items() if not given.get(name)}
    return {name: value for name, value in left.items() if not (name == "token" and elsewhere)}


def check_connection(found: Connection) -> Connection:
    """Return the connection. Raises ``UsageError`` if the connection is not valid.

    Print a note if the token would be sent unencrypted.
    """
    try:
        parts = urlsplit(found.url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise click.UsageError(f"{found.url.rpartition('@')[2]} is not a server URL such as {URL}.")
    for name in MEMBERS:
        if (value := getattr(found, name)) != replace_controls(value).strip():
            raise click.UsageError(f"{name} must not have control characters or surrounding spaces.")
    if found.token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        note(f"The token is sent to {parts.hostname} unencrypted; use https.")
    return found


def is_loopback(host: str) -> bool:
    """Return whether the host is ``localhost`` or a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _warn_of_readers(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"{path} contains a token, and other users can read or write it. Run: chmod 600 {path}")


def read_profile(profile: str | None, file: Path | None) -> dict[str, str]:
    """Return the members of ``profile``, or of the default profile if ``profile`` is not set."""
    path = file or config_file()
    document = read_profiles(path)
    if document is None:
        if profile or file:
            raise click.UsageError(f"There is no configuration file {path}.")
        return {}
    name = profile or document.profile
    return members(document, name or "default", path) if name or "default" in document.profiles else {}


def read_profiles(path: Path) -> ProfileFile | None:
    """Read the configuration file. Return ``None`` if the file does not exist.

    Raises ``UsageError`` if the file is unreadable or not valid.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ProfileFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not valid TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{path} is not a valid configuration file: {error}.") from error


def members(document: ProfileFile, name: str, path: Path) -> dict[str, str]:
    """Return the members of a profile. Raises ``UsageError`` if the profile is missing or not valid."""
    if name not in document.profiles:
        raise click.UsageError(f"{path} has no profile {name}.")
    found, where = document.profiles[name], f"{path}, profile {name}"
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise click.UsageError(f"{where}: members must be strings.")
    if unknown := sorted(found.keys() - set(MEMBERS)):
        raise click.UsageError(f"{where}: {unknown[0]} is not one of {', '.join(MEMBERS)}.")
    return found
