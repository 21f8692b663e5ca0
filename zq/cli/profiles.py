# SPDX-License-Identifier: Apache-2.0
"""Which server and which project: from flags and the environment, and what they leave open from a file of profiles."""

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

from zq.cli.output import note, plain
from zq.client.credentials import check_private
from zq.errors import Invalid
from zq.logs import without_secrets

# The server, unless one is given.
URL: Final = "http://localhost:8888"
# What a profile may have.
MEMBERS: Final = ("url", "project", "token", "client_id")


class Connection(Struct, frozen=True):
    """Where to connect, and as whom; "" = not given."""

    url: str = URL
    project: str = ""
    token: str = ""
    client_id: str = ""

    @property
    def shown_url(self) -> str:
        """The URL without user and password."""
        return without_user(self.url)


class ProfileFile(Struct):
    """The file of profiles."""

    profile: str | None = None
    profiles: dict[str, Any] = {}


def without_user(url: str) -> str:
    """Without a password, if there is one in it."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL
        return without_secrets(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def config_file() -> Path:
    """Where the file of profiles is unless one is named."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "zq" / "config.toml"


class Login(Struct, frozen=True):
    """A token that ``zq login`` stored, for one server."""

    url: str
    token: str
    project: str = ""


def token_file(path: Path) -> Path:
    """Where the tokens of logins are: beside the file of profiles."""
    return path.with_suffix(".tokens")


def named_profile(profile: str | None, path: Path) -> str:
    """The profile in force; "" if there is none."""
    document = read_profiles(path) or ProfileFile()
    return profile or document.profile or ("default" if "default" in document.profiles else "")


def logins(path: Path) -> dict[str, Login]:
    """The logins by profile. Raises ``UsageError`` for a file that others may read."""
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
        raise click.UsageError(f"{path} is no file of logins.") from error


def write_logins(path: Path, stored: Mapping[str, Login]) -> None:
    """Replace the file in one step; only its owner may read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as fresh:  # mode 0600
        fresh.write(msgspec.json.encode(stored))
    os.replace(fresh.name, path)


def _with_login(found: Connection, profile: str | None, path: Path) -> Connection:
    """With the token of a login, if none was given and it is for this server."""
    login = None if found.token else logins(token_file(path)).get(named_profile(profile, path))
    if login is None or login.url.rstrip("/") != found.url.rstrip("/"):
        return found
    return replace(found, token=login.token, project=found.project or login.project)


def connection(given: Mapping[str, Any], profile: str | None, file: Path | None, stored: bool = True) -> Connection:
    """The members that were given, completed by the profile and the login; a token is for its own URL only.

    ``stored`` False: no token of a profile or a login counts. Raises ``UsageError``.
    """
    path = file or config_file()
    own = completing(given, read_profile(profile, file))
    if not stored:
        own.pop("token", None)
    if "token" in own:
        _warn_of_readers(path)
    found = Connection(**{**own, **{name: value for name in MEMBERS if (value := given.get(name))}})
    return checked(_with_login(found, profile, path) if stored else found)


def completing(given: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """What a profile adds to the members that were given."""
    elsewhere = "url" in own and (given.get("url") or own["url"]).rstrip("/") != own["url"].rstrip("/")
    left = {name: value for name, value in own.items() if not given.get(name)}
    return {name: value for name, value in left.items() if not (name == "token" and elsewhere)}


def checked(found: Connection) -> Connection:
    """The same, if it can be used. Raises ``UsageError``."""
    try:
        parts = urlsplit(found.url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise click.UsageError(f"{found.url.rpartition('@')[2]} is no URL of a server, as in {URL}.")
    for name in MEMBERS:
        if (value := getattr(found, name)) != plain(value).strip():
            raise click.UsageError(f"{name} has a control character or a space at its end.")
    if found.token and parts.scheme == "http" and not _is_here(parts.hostname or ""):
        note(f"The token goes to {parts.hostname} in clear: use https.")
    return found


def _is_here(host: str) -> bool:
    """Whether a host is this machine, so that no network lies between."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _warn_of_readers(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"{path} holds a token, and others may read or write it: chmod 600 {path}")


def read_profile(profile: str | None, file: Path | None) -> dict[str, str]:
    """The members of a profile: the one named, the file's ``profile``, or ``default`` if there is one."""
    path = file or config_file()
    document = read_profiles(path)
    if document is None:
        if profile or file:
            raise click.UsageError(f"There is no configuration file {path}.")
        return {}
    name = profile or document.profile
    return members(document, name or "default", path) if name or "default" in document.profiles else {}


def read_profiles(path: Path) -> ProfileFile | None:
    """The file of profiles; None if there is none. Raises ``UsageError``."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ProfileFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is no TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{path} is no file of profiles: {error}.") from error


def members(document: ProfileFile, name: str, path: Path) -> dict[str, str]:
    """What a profile has. Raises ``UsageError``."""
    if name not in document.profiles:
        raise click.UsageError(f"{path} has no profile {name}.")
    found, where = document.profiles[name], f"{path}, profile {name}"
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise click.UsageError(f"{where}: members must be texts.")
    if unknown := sorted(found.keys() - set(MEMBERS)):
        raise click.UsageError(f"{where}: {unknown[0]} is none of {', '.join(MEMBERS)}.")
    return found
