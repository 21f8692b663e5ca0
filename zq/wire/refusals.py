# SPDX-License-Identifier: Apache-2.0
"""Mapping between error classes and HTTP statuses, for server and client (contract section 1.8)."""

from typing import Final

from zq import errors

# Header with the error's class name, because several classes share a status and title.
HEADER: Final = "X-Zq-Error"

# Status and title by error class. Other classes inherit the status and title of their base class.
STATUSES: Final[dict[type[Exception], tuple[int, str]]] = {
    errors.Invalid: (400, "Invalid API request"),
    errors.InvalidBody: (400, "Invalid request body"),
    errors.InvalidParameter: (400, "Invalid parameter"),
    errors.InvalidName: (400, "Invalid queue identification"),
    errors.InvalidTopicName: (400, "Invalid topic identification"),
    errors.PoolRefused: (400, "Unable to create pool"),
    errors.FlavorRefused: (400, "Unable to create"),
    errors.FlavorUpdateRefused: (400, "updatefail"),
    errors.ClaimNotHeld: (400, "Unable to delete"),
    errors.NotAuthenticated: (401, "Unauthorized"),
    errors.NotAuthorized: (403, "Not authorized"),
    errors.QuotaExceeded: (403, "Quota exceeded"),
    errors.PoolInUse: (403, "Unable to delete"),
    errors.MessageClaimed: (403, "Unable to delete"),
    errors.NotFound: (404, "Not found"),
    errors.Conflict: (409, "Conflict"),
    errors.PoolConflict: (409, "Resource conflict"),
    errors.MoveRefused: (409, "Unable to move queue"),
    errors.MetadataConflict: (409, "Resource conflict"),
    errors.CommitTooLarge: (413, "Commit too large"),
    errors.TooManyRequests: (429, "Too many requests"),
    errors.KeyReused: (422, "Idempotency-Key reused"),
    errors.UnsupportedMediaType: (415, "415 Unsupported Media Type"),
    errors.NotBuilt: (400, "Not implemented"),
    errors.Crowded: (503, "Too many streams"),
    errors.ReadOnly: (503, "Read only"),
    errors.QueueMoving: (503, "Queue moving"),
    errors.NoPosts: (503, "No posts"),
    errors.Unavailable: (503, "Service temporarily unavailable"),
    errors.StoreDamaged: (503, "Store damaged"),
    errors.MessageUnreadable: (503, "Message unreadable"),
}

# Error classes by name.
KINDS: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.ZqError)
}
# Error classes by status and title.
ERRORS_BY_TITLE: Final = {row: kind for kind, row in STATUSES.items()}
# Error classes for responses with another title, for example of a proxy.
BY_STATUS: Final[dict[int, type[errors.ZqError]]] = {
    401: errors.NotAuthenticated,
    403: errors.NotAuthorized,
    404: errors.NotFound,
    409: errors.Conflict,
    415: errors.UnsupportedMediaType,
    429: errors.Unavailable,
    501: errors.NotBuilt,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def row(kind: type[Exception]) -> tuple[int, str]:
    """Return the HTTP status and title of an error class."""
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def error(status: int, name: str, title: str, sentence: str, retry_after: int = 1, limit: str = "") -> errors.ZqError:
    """Convert an error response to an exception.

    ``name`` is the value of the header ``X-Zq-Error``, or "" if the response does not have this header.
    """
    kind = KINDS.get(name) or ERRORS_BY_TITLE.get((status, title)) or BY_STATUS.get(status)
    if kind is errors.InvalidHeader:
        return errors.InvalidHeader(title, sentence)
    if kind is errors.TooManyRequests:
        return errors.TooManyRequests(sentence, retry_after, limit)
    if kind is None:
        kind = errors.Invalid if 400 <= status < 500 else errors.ZqError
    failure = kind(sentence)
    assert isinstance(failure, errors.ZqError)
    return failure
