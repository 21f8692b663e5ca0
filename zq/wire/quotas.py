# SPDX-License-Identifier: Apache-2.0
"""Responses of ``/v2/quota`` and ``/v2/admin/project…``, as structs; see ``zq.wire.answers``."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from zq.model.quotas import State
from zq.wire.answers import Count, ProjectId

StateText: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": [*State]})]


class UsageReport(Struct, frozen=True, kw_only=True):
    """The usage of a project.

    Attributes:
        used: Usage by name of the limit.
        exact: Whether the usage is exact, by name of the limit.
        age: Age of inexact counts in seconds.
    """

    used: dict[str, Count]
    exact: dict[str, bool]
    age: Annotated[float, Meta(extra_json_schema={"minimum": 0})]


class QuotaReport(UsageReport, frozen=True):
    """The limits, the state and the usage of the caller's project. A limit of 0 = no limit."""

    limits: dict[str, int]
    state: StateText


class ProjectReport(UsageReport, frozen=True):
    """The settings and the usage of a project.

    Attributes:
        limits: The limits that an administrator has set.
        deleting: Whether the project is being deleted.
    """

    project: ProjectId
    limits: dict[str, int]
    state: StateText
    deleting: bool
