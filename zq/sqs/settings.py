# SPDX-License-Identifier: Apache-2.0
"""Options of the [sqs] configuration section."""

from typing import Annotated, Final

from msgspec import Struct

from zq.auth.master_keys import read_keys
from zq.errors import InvalidName, StartRefused
from zq.http.features import Listener, Section
from zq.model.limits import project_id
from zq.model.options import Flag, Option, Text
from zq.sqs.limits import MAX_BODY

# Name of the option with the path of the key file.
KEY_FILE: Final = "[sqs] key_file"


class SqsOptions(Struct, frozen=True, kw_only=True):
    """The options of the [sqs] section."""

    enabled: Flag = False
    """Serve the Amazon SQS protocol on the main port, next to zq's own API."""
    auth: Annotated[str, Option(choices=("sigv4", "none"))] = "sigv4"
    """Authentication of SQS requests. sigv4: signatures. none: no authentication, for local use only."""
    region: Annotated[str, Option(pattern=r"^[a-z0-9-]{1,64}$")] = "us-east-1"
    """Region in ARNs if a request names none."""
    public_url: Annotated[str, Option(pattern=r"^(https?://[^/\s]+)?$", sample="https://sqs.example.org")] = ""
    """Scheme and host of queue URLs behind a proxy that changes them. Empty: those of the request."""
    project: Text = "000000000000"
    """With auth = none: project of callers whose access key id is not a twelve-digit account."""
    auth_none_anywhere: Flag = False
    """Allow auth = none although other machines can reach the server. Each start logs a warning."""
    purge_interval: Annotated[int, Option(0, 86_400)] = 60
    """Minimum seconds between two purges of a queue through SQS; 0: no limit."""
    name_rest: Annotated[int, Option(0, 86_400)] = 0
    """Seconds for which the name of a queue that was deleted through SQS stays reserved; 0: not reserved. AWS: 60."""
    kms: Annotated[str, Option(choices=("ignore", "refuse"))] = "ignore"
    """Handling of KMS keys in queue attributes. ignore: store the attribute without encryption. refuse: reject the
    request.
    """
    key_file: Text = ""
    """A file (mode 0600 or 0640) with keys that encrypt the secrets of access keys, in the format of [transport]
    message_encryption_key_file: the first key encrypts, all keys decrypt. Empty: only unencrypted access keys can be
    created.
    """


def _complete(options: SqsOptions, _settings: object) -> SqsOptions:
    """Validate the option ``project``, and return the options unchanged.

    Raises ``StartRefused`` if the option is not a valid project id.
    """
    try:
        project_id(options.project)
    except InvalidName as error:
        raise StartRefused(f"[sqs] project is invalid: {error}") from error
    return options


def _line(options: SqsOptions, url: str) -> str:
    return f"SQS: {options.public_url or url}." if options.enabled else ""


def _check_exposure(options: SqsOptions, listener: Listener) -> list[str]:
    """Return warnings for the operator: one if authentication is disabled, and none if it is enabled.

    Raises ``StartRefused`` if authentication is disabled, other machines can reach the server, and
    ``auth_none_anywhere`` is not set.
    """
    if not options.enabled or options.auth != "none":
        return []
    if not (listener.is_loopback or options.auth_none_anywhere):
        raise StartRefused(
            f"[sqs] auth is none, so --bind {listener.host} would let everyone who reaches this machine read and "
            "delete all messages through the SQS API. Bind to 127.0.0.1, or allow this access with [sqs] "
            "auth_none_anywhere = true."
        )
    return [
        f"[sqs] auth is none: everyone who reaches {listener.host}:{listener.port} can read and delete all messages "
        "through the SQS API, as any account."
    ]


SECTION: Final = Section(
    "sqs",
    SqsOptions,
    _complete,
    line=_line,
    check_exposure=_check_exposure,
    max_body=lambda options: MAX_BODY if options.enabled else 0,
    check_files=lambda options: read_keys(options.key_file, KEY_FILE),
)
