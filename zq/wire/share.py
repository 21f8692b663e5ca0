# SPDX-License-Identifier: Apache-2.0
"""Requests for pre-signed URLs on the wire (contract 10.1)."""

from typing import Final

import msgspec
from msgspec import Struct

from zq import wire


class ShareTerms(Struct, forbid_unknown_fields=True):
    """What is to be signed; None = by default."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


_decoder: Final = msgspec.json.Decoder(ShareTerms)


def share_terms(raw: bytes) -> ShareTerms:
    """What is to be signed; of an empty body the defaults. Raises ``InvalidBody``."""
    return wire.decode(_decoder, raw) if raw else ShareTerms()
