# SPDX-License-Identifier: Apache-2.0
"""Rows that an ingest reads: a reason for each that no message can hold."""

import pytest

pytest.importorskip("pyspark")


@pytest.mark.parametrize("number", ["1e999", "9223372036854775808", "NaN"])
def test_a_row_with_a_number_out_of_range_has_a_reason(number: str) -> None:
    """Of the whole row, and of the member that becomes the body."""
    from zq.jobs.ingest import parse_json

    for member, text in ((None, f"[{number}]"), ("payload", f'{{"payload": [{number}]}}')):
        found = parse_json(text.encode(), member)
        assert "body" not in found
        assert found["reason"]
    assert parse_json(b"[1e308]", None) == {"body": b"[1e308]"}
