# SPDX-License-Identifier: Apache-2.0
"""Rows of an ingest: each row that cannot become a message has a reason."""

import pytest

pytest.importorskip("pyspark")


@pytest.mark.parametrize("number", ["1e999", "9223372036854775808", "NaN"])
def test_a_row_with_a_number_out_of_range_has_a_reason(number: str) -> None:
    """The number is in the whole row, or in the member that becomes the body."""
    from zq.jobs.ingest import parse_json

    for member, text in ((None, f"[{number}]"), ("payload", f'{{"payload": [{number}]}}')):
        found = parse_json(text.encode(), member)
        assert "body" not in found
        assert found["reason"]
    assert parse_json(b"[1e308]", None) == {"body": b"[1e308]"}
