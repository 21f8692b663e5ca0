# SPDX-License-Identifier: Apache-2.0
"""Conversion of oslo.config options to checked values.

An invalid value raises ``StartRefused`` with the option, the place where it is set, and its valid values.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused
from zq.http.features import Section
from zq.limits import MAX_COMMIT_BODY, MAX_CONTROL_BODY, MIN_TTL, Limits
from zq.logs import without_secrets
from zq.model import store_uri
from zq.model.expiry import Expiry
from zq.model.identity import AuthOptions, ShareOptions
from zq.model.quotas import Quota
from zq.serving.sections import SECTIONS
from zq.serving.settings import object as objects
from zq.serving.settings.auth import KEYSTONE, auth_options, control_path, share_options
from zq.serving.settings.engine import engine_of, places
from zq.serving.settings.options import OPTIONS, variable
from zq.serving.settings.pools import NETWORKED, PoolSettings, pools_of
from zq.serving.settings.tenants import quota_of
from zq.serving.settings.tls import check_tls
from zq.serving.settings.transport import BOUNDS

T = TypeVar("T")
# An entry of allowed_hosts.
HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}|\*", re.ASCII)
# An entry of queue_ttl: a name pattern and a default ttl.
QUEUE_TTL: Final = re.compile(r"\s*([A-Za-z0-9_.*?-]{1,64})\s*:\s*([0-9]{1,12})\s*", re.ASCII)
# Similarity from which a name counts as a misspelt option; 1 means equal.
ALIKE: Final = 0.8
# Environment variables of all options.
VARIABLES: Final = tuple(variable(section, option.dest) for section, options in OPTIONS.items() for option in options)
# Environment variable prefix of each section.
PREFIXES: Final = tuple(variable(section, "") for section in OPTIONS)


class Settings(Struct, frozen=True, kw_only=True):
    """The checked options of one server."""

    auth: AuthOptions
    share: ShareOptions
    sections: dict[str, Any]
    """Options of the features' sections by section name; ``of`` returns one section."""
    policy_file: str
    quota: Quota
    """Default project quota."""
    quota_headers: bool
    audit: str
    audit_ttl: int
    bind: str
    port: int
    engine: str
    control: str
    trust_network: bool
    allowed_hosts: tuple[str, ...]
    """Host names in lower case."""
    threads: int
    workers: int
    max_waiters: int
    max_streams: int
    graceful_timeout: int
    drain_delay: int
    keepalive: int
    head_timeout: float
    body_timeout: float
    send_timeout: float
    queue_timeout: float
    max_connections: int
    max_connections_per_address: int
    behind_proxy: bool
    tls_cert: str
    tls_key: str
    tls_client_ca: str
    tls_min: str
    uri: str
    shared_store: bool
    wait_for_store: bool
    driver_options: dict[str, Any]
    limits: Limits
    storage_timeout: float
    queue_ttl: tuple[tuple[str, int], ...]
    """Pairs of a queue name pattern and a default message TTL; the first match applies."""
    strict_client_id: bool
    delete_with_claim_id: bool
    message_encryption_key_file: str
    admin_mode: bool
    pooling: PoolSettings | None
    """``None`` if there is a single store."""
    checksum: bool
    expiry: Expiry
    sweep_interval: float
    probes_bind: tuple[str, int] | None
    metrics_bind: str
    metrics_port: int
    metrics_on_main_port: bool
    per_queue_metrics: bool
    max_metric_queues: int
    max_counted: int
    topic_log_bytes: int
    topic_log_messages: int
    log_format: str
    log_level: str
    log_requests: bool

    def of(self, section: Section[T]) -> T:
        """Return the options of a feature's section."""
        options: T = self.sections[section.name]
        return options

    @property
    def max_body(self) -> int:
        """Maximum body size in bytes over all routes."""
        return max(
            *(self.limits.max_messages_post_size, self.limits.max_queue_metadata),
            *(MAX_COMMIT_BODY, MAX_CONTROL_BODY),
            *(section.max_body(self.of(section)) for section in SECTIONS),
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Convert errors of oslo.config to ``StartRefused``."""
    try:
        yield
    except RecursionError as error:
        raise StartRefused("The configuration cannot be used: an option refers to itself by a $.") from error
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError, cfg.TemplateSubstitutionError) as error:
        # The original message may contain part of a password.
        raise StartRefused(
            "The configuration cannot be used: a value refers by a $ to an option that does not exist; a $ itself is "
            "written $$."
        ) from error
    except (cfg.Error, ValueError) as error:
        raise StartRefused(f"The configuration cannot be used: {without_secrets(str(error))}.") from error


def read(conf: cfg.ConfigOpts, path: str | None) -> Settings:
    """Return the checked options of ``conf``; ``path`` is the configuration file. Raises ``StartRefused``."""
    with refusing():
        _check_values(conf, path)
        settings = _settings(conf)
    _check(settings)
    return settings


def check_file(path: str) -> None:
    """Raise ``StartRefused`` if the file is unreadable or sets an unknown option."""
    for section, entries in sections_of(path).items():
        if section == KEYSTONE:
            continue
        known = {option.dest for option in OPTIONS.get(section, [])}
        for name in entries:
            if name not in known:
                raise StartRefused(f"The configuration file {path} sets {name} in [{section}], which does not exist.")


def _settings(conf: cfg.ConfigOpts) -> Settings:
    uri = conf.storage.uri
    scheme = store_uri.split(uri).scheme
    limits = Limits(**{name: conf.transport[name] for name in Limits.__struct_fields__})
    server = {option.dest: conf.server[option.dest] for option in OPTIONS["server"]}
    del server["control"]
    server["allowed_hosts"] = tuple(_allowed_hosts(server["allowed_hosts"]))
    server["engine"] = engine_of(server["engine"], conf.auth.certificates)
    return Settings(
        **server | places(server),
        **_tenant_settings(conf),
        control=control_path(conf.server.control, uri),
        uri=uri,
        shared_store=scheme in NETWORKED,
        wait_for_store=conf.storage.wait,
        driver_options=_driver_options(conf, scheme),
        limits=limits,
        storage_timeout=conf.transport.storage_timeout,
        queue_ttl=tuple(_queue_ttl(queue_ttl_lines(conf), limits.max_message_ttl)),
        strict_client_id=conf.transport.client_id_uuid_safe == "strict",
        delete_with_claim_id=conf.transport.message_delete_with_claim_id,
        message_encryption_key_file=conf.transport.message_encryption_key_file,
        admin_mode=conf.admin_mode,
        pooling=pools_of(conf, scheme, partial(_driver_options, conf)),
        checksum=conf.enable_checksum,
        expiry=Expiry(**{name: conf.expiry[name] for name in Expiry.__struct_fields__}),
        sweep_interval=conf.expiry.sweep_interval,
        probes_bind=_address(conf.probes.bind),
        metrics_bind=conf.metrics.bind.strip("[]"),
        metrics_port=conf.metrics.port,
        metrics_on_main_port=conf.metrics.on_main_port,
        per_queue_metrics=conf.metrics.per_queue,
        max_metric_queues=conf.metrics.max_queues,
        max_counted=conf.metrics.max_counted,
        topic_log_bytes=conf.topics.topic_log_bytes,
        topic_log_messages=conf.topics.topic_log_messages,
        log_format=conf.log.format,
        log_level=conf.log.level,
        log_requests=conf.log.requests,
    )


def _tenant_settings(conf: cfg.ConfigOpts) -> dict[str, Any]:
    """Return the settings of authentication, features, quotas and audit log."""
    return {
        "auth": auth_options(conf),
        "share": share_options(conf),
        "sections": {section.name: section.read(conf) for section in SECTIONS},
        "policy_file": conf.oslo_policy.policy_file,
        "quota": quota_of(conf),
        "quota_headers": conf.quota.headers,
        "audit": conf.log.audit,
        "audit_ttl": conf.log.audit_ttl,
    }


def _driver_options(conf: cfg.ConfigOpts, scheme: str) -> dict[str, Any]:
    section = objects.SECTION if scheme in objects.SCHEMES else NETWORKED.get(scheme, f"storage:{scheme}")
    options = {option.dest: conf[section][option.dest] for option in OPTIONS.get(section, [])}
    return options | {"timeout": conf.transport.storage_timeout} if scheme in NETWORKED else options


def _address(text: str) -> tuple[str, int] | None:
    """Parse host and port; ``None`` for an empty text."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise StartRefused(f"[probes] bind must be an address, a colon and a port from 1 to 65535; it is {text!r}.")
    return host.strip("[]"), int(port)


def _allowed_hosts(given: Sequence[str]) -> Iterator[str]:
    for name in given:
        if HOST_NAME.fullmatch(name) is None:
            raise StartRefused(
                f"[server] allowed_hosts must be * or names of hosts, without ports and schemes; one is {name[:100]!r}."
            )
        yield name.lower()


def queue_ttl_lines(conf: cfg.ConfigOpts) -> Sequence[str]:
    """Return the entries of the option ``queue_ttl``; in its environment variable, commas separate them."""
    # oslo.config would treat each character of the variable as an entry.
    together = os.environ.get(variable("expiry", "queue_ttl"))
    lines: list[str] = conf.expiry.queue_ttl if together is None else [line for line in together.split(",") if line]
    return lines


def _queue_ttl(lines: Sequence[str], most: int) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(lines, 1):
        found = QUEUE_TTL.fullmatch(line)
        if found is None or not MIN_TTL <= int(found[2]) <= most:
            raise StartRefused(
                f"[expiry] queue_ttl must be a pattern of 1 to 64 characters from A-Z a-z 0-9 _ - . * ?, a colon, and "
                f"seconds from {MIN_TTL} to {most}; line {number} is {line[:100]!r}."
            )
        yield found[1], int(found[2])


# URI prefixes of stores that only one process can open.
SINGLE_PROCESS: Final = ("memory:", "rocksdb:", *(f"{scheme}:" for scheme in objects.SCHEMES))


def _check(settings: Settings) -> None:
    """Raise ``StartRefused`` if options contradict each other."""
    if settings.uri.startswith(SINGLE_PROCESS) and settings.workers != 1:
        raise StartRefused("[server] workers must be 1 with an embedded store, because only one process can open it.")
    expiry = settings.expiry
    if expiry.sweep_max_deletes < expiry.sweep_batch_size:
        raise StartRefused(
            f"[expiry] sweep_max_deletes must be at least sweep_batch_size, which is {expiry.sweep_batch_size}; it is "
            f"{expiry.sweep_max_deletes}."
        )
    for section in SECTIONS:
        section.check(settings.of(section), settings)
    check_tls(settings, settings.auth.strategy, settings.auth.certificates)
    _check_limits(settings.limits)
    least = 2 * settings.limits.max_messages_post_size
    if settings.topic_log_bytes < least:
        raise StartRefused(
            f"[topics] topic_log_bytes must be at least twice max_messages_post_size, which makes {least}; it is "
            f"{settings.topic_log_bytes}."
        )


def _check_limits(limits: Limits) -> None:
    for name, bounds in BOUNDS.items():
        value = getattr(limits, name)
        low, high = (getattr(limits, bound) if isinstance(bound, str) else bound for bound in bounds)
        if high is None and value < low:
            least = f"{low}, which is {bounds[0]}" if isinstance(bounds[0], str) else low
            raise StartRefused(f"[transport] {name} must be at least {least}; it is {value}.")
        if high is not None and not low <= value <= high:
            raise StartRefused(f"[transport] {name} must be from {low} to {high}; it is {value}.")


def value_of(conf: cfg.ConfigOpts, section: str, option: cfg.Opt) -> Any:
    """Return the current value of an option."""
    return conf[option.dest] if section == "DEFAULT" else conf[section][option.dest]


def _check_values(conf: cfg.ConfigOpts, path: str | None) -> None:
    """Raise ``StartRefused`` if a value has a wrong type or is out of range; ``path`` is the configuration file."""
    for section, options in OPTIONS.items():
        for option in options:
            try:
                value = value_of(conf, section, option)
            except cfg.ConfigSourceValueError as error:
                raise StartRefused(_sentence(section, option, path, error)) from error
            number = isinstance(option, cfg.IntOpt | cfg.FloatOpt) and option.default is not None
            if number and (value is None or not math.isfinite(value)):
                raise StartRefused(f"{_place(section, option, path)} must be a number; it is {value or 'empty'}.")


def sections_of(path: str) -> dict[str, dict[str, list[str]]]:
    """Return the entries of a configuration file by section. Raises ``StartRefused`` if the file is unreadable."""
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError) as error:
        raise StartRefused(f"The configuration file {path} cannot be read: {without_secrets(str(error))}.") from error
    return sections


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each environment variable that resembles an option of zq but is not one.

    Variables of OpenStack clients have no double underscore and are not reported.
    """
    for name in sorted(environment):
        if name in VARIABLES or not name.startswith("OS_") or "__" not in name:
            continue
        alike = get_close_matches(name.upper(), VARIABLES, 1, ALIKE)
        if alike or name.startswith(PREFIXES):
            hint = f"; did you mean {alike[0]}?" if alike else ". zq-server --sample-config prints all options."
            yield f"The variable {name} is ignored, since it names no option{hint}"


def _sentence(section: str, option: cfg.Opt, path: str | None, error: Exception) -> str:
    reason = str(error).partition(" is not valid: ")[2]
    wanted = _wanted(option)
    if wanted is None:
        return f"{_place(section, option, path)} cannot be used: {without_secrets(reason)}."
    given = os.environ.get(variable(section, option.dest))
    if given is None:
        given = sections_of(path)[section][option.dest][-1] if path else reason
    return f"{_place(section, option, path)} must be {wanted}; it is {without_secrets(given)[:100]!r}."


def _place(section: str, option: cfg.Opt, path: str | None) -> str:
    by = variable(section, option.dest)
    where = f", set by {by}," if by in os.environ else f" of {path}" if path else ""
    return f"Option {option.dest} in section [{section}]{where}"


def _wanted(option: cfg.Opt) -> str | None:
    """Return a description of the option's valid values, or ``None`` if only oslo.config can check them."""
    if isinstance(option, cfg.BoolOpt):
        return "true or false"
    if choices := getattr(option.type, "choices", None):
        return f"one of {', '.join(choices)}"
    if not isinstance(option, cfg.IntOpt | cfg.FloatOpt | cfg.PortOpt):
        return None
    kind = "a number" if isinstance(option, cfg.FloatOpt) else "a whole number"
    low, high = (getattr(option.type, bound, None) for bound in ("min", "max"))
    if high is None:
        return kind if low is None else f"{kind}, at least {low}"
    return f"{kind} from {low} to {high}"
