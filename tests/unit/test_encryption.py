# SPDX-License-Identifier: Apache-2.0
"""Sealed bodies, and the file of their keys."""

import os
from base64 import b64encode
from pathlib import Path

import pytest

from zq.auth.master_keys import MasterKeys, read_keys
from zq.broker.encryption import MARK, Sealing
from zq.errors import MessageUnreadable, StartRefused, Unavailable

KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
TEXT = b64encode(KEYS["one"]).decode()


def file_of(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


def test_a_body_comes_back_for_its_message_only() -> None:
    """F1: neither another project nor another id opens it, and the first key seals."""
    sealing = Sealing(KEYS)
    sealed = sealing.seal("p", "m", b'{"a": 1}')
    assert sealed.startswith(MARK + b"\x03one")
    assert sealing.open("p", "m", sealed) == b'{"a": 1}'
    for project, id in [("q", "m"), ("p", "n"), ("p\x00m", "")]:
        with pytest.raises(MessageUnreadable):
            sealing.open(project, id, sealed)


def test_no_bit_can_be_changed_and_no_byte_cut_off() -> None:
    """F1: it is 503, never a bare failure, whatever stands in the store behind the mark."""
    sealing = Sealing(KEYS)
    sealed = sealing.seal("p", "m", b'"body"')
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(1, len(sealed))]
    for damaged in [*changed, *(sealed[:end] for end in range(1, len(sealed))), MARK + b"\xff" * 300]:
        with pytest.raises(MessageUnreadable):
            sealing.open("p", "m", damaged)


def test_what_is_not_sealed_is_as_it_is_and_without_a_key_nothing_is_sealed() -> None:
    sealing = Sealing()
    assert sealing.open("p", "m", b"[1]") == b"[1]"
    with pytest.raises(Unavailable):
        sealing.seal("p", "m", b"[1]")


def test_keys_are_read_in_order_and_again(tmp_path: Path) -> None:
    path = file_of(tmp_path, f"# ours\n\none {TEXT}\n two  {b64encode(KEYS['two']).decode()}\n")
    assert list(read_keys(path).items()) == list(KEYS.items())
    seen: list[object] = []
    file = MasterKeys(path, seen.append)
    file_of(tmp_path, f"three {TEXT}\n")
    file.reload()
    assert seen == [{"three": KEYS["one"]}]
    assert read_keys("") == {}


@pytest.mark.parametrize(
    ("text", "mode", "fault"),
    [
        (f"one {TEXT}", 0o644, "mode 0600"),
        ("", 0o600, "holds no key"),
        ("one", 0o600, "line 1"),
        (f"\none {TEXT[:-4]}", 0o600, "line 2"),
        (f"o/e {TEXT}", 0o600, "line 1"),
        (f"one !{TEXT[1:]}", 0o600, "line 1"),
        (f"one {TEXT}\none {TEXT}", 0o600, "names an id again"),
    ],
)
def test_a_file_that_is_not_right_is_no_start(tmp_path: Path, text: str, mode: int, fault: str) -> None:
    """F2: with a sentence that names the line and never the key."""
    with pytest.raises(StartRefused, match=fault) as refused:
        read_keys(file_of(tmp_path, text, mode))
    assert TEXT[:8] not in str(refused.value)
