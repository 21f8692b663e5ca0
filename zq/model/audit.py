# SPDX-License-Identifier: Apache-2.0
"""Entries of the audit log and of the audit trail (tenancy contract, section 9)."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from zq.model.quotas import MAX_QUOTA


class Entry(Struct, frozen=True, kw_only=True):
    """An entry of the audit log. An entry describes a change or a rejected request.

    Attributes:
        route: The path with parameter names, such as ``/v2/queues/{queue}/purge``.
        object: The affected object, such as ``queue jobs``.
        why: Reason for a rejection. If a token was rotated: a sentence that names the new token.
        messages: Number of affected messages, if known.
    """

    time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] = ""
    request_id: str = ""
    project: str = ""
    credential: str = ""
    peer: str = ""
    method: str = ""
    route: str = ""
    rule: str = ""
    object: str = ""
    outcome: str
    why: str = ""
    messages: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_QUOTA})] | UnsetType = UNSET
