# SPDX-License-Identifier: Apache-2.0
"""Receipt handles: their content, and the refusal of invalid ones."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zq.model import Message, MessageHandle, QueueRef
from zq.sqs import receipts
from zq.sqs.errors import SqsError

QUEUE = QueueRef("acme", "jobs")
ids = st.binary(min_size=16, max_size=16).map(bytes.hex)


def claimed(id: str, count: int) -> Message:
    return Message(id, b'"x"', 60, 0.0, 60.0, 30.0, 1, "", claim_count=count)


def is_none(queue: QueueRef, text: str) -> bool:
    """Return whether the text is refused as an invalid handle of the queue."""
    with pytest.raises(SqsError) as refused:
        receipts.decode_handle(queue, text)
    return refused.value.shape == "ReceiptHandleIsInvalid"


@given(ids, ids, st.integers(1, 2**32 - 1))
def test_a_handle_identifies_its_delivery(id: str, claim: str, count: int) -> None:
    """Message, claim and delivery count are encoded in 66 characters."""
    [text] = receipts.encode_handles(QUEUE, claim, [claimed(id, count)])
    assert len(text) == receipts.LENGTH
    assert receipts.decode_handle(QUEUE, text, 5) == MessageHandle(id, claim, count, 5)


@pytest.mark.parametrize("other", [("acme", "other"), ("other", "jobs"), ("acmej", "obs")])
def test_a_handle_is_refused_by_other_queues(other: tuple[str, str]) -> None:
    """Queues of any project refuse the handle of another queue."""
    [text] = receipts.encode_handles(QUEUE, "cd" * 16, [claimed("ab" * 16, 1)])
    assert is_none(QueueRef(*other), text)


@given(st.integers(0, receipts.LENGTH - 1), st.characters(exclude_characters="\n"))
def test_a_changed_handle_is_invalid(at: int, character: str) -> None:
    """Any other character makes the handle invalid, even in the unused bits of the last one."""
    [text] = receipts.encode_handles(QUEUE, "cd" * 16, [claimed("ab" * 16, 7)])
    changed = text[:at] + character + text[at + 1 :]
    assert changed == text or is_none(QUEUE, changed)


@pytest.mark.parametrize(
    "text", ["", "x", "A" * 65, "A" * 66, "A" * 67, "é" * 66, urlsafe_b64encode(b"1" * 49).decode()]
)
def test_a_text_that_is_not_a_handle_is_refused(text: str) -> None:
    assert is_none(QUEUE, text)


@given(st.lists(st.one_of(ids.map(lambda id: claimed(id, 3)), st.text(), st.text(min_size=66, max_size=66))))
def test_handles_among_invalid_texts_are_decoded(given: list[Message | str]) -> None:
    """Other texts in a batch do not change how a handle is decoded."""
    handles = iter(receipts.encode_handles(QUEUE, "cd" * 16, [each for each in given if isinstance(each, Message)]))
    texts = [each if isinstance(each, str) else next(handles) for each in given]
    expected = [None if isinstance(each, str) else MessageHandle(each.id, "cd" * 16, 3) for each in given]
    assert receipts.decode_handles(QUEUE, texts) == expected
