# SPDX-License-Identifier: Apache-2.0
"""The commands of ``api-ref/authentication.md``, run by a shell."""

from pathlib import Path

from tests.blocks import only
from tests.reader import SHELL, succeed


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    """The commands of ``api-ref/authentication.md`` work on a store that no server has open."""
    store = f"export OS_STORAGE__URI=rocksdb://{tmp_path}/store\n"
    printed = succeed([*SHELL, store + only("api-ref/authentication.md", "sh")], tmp_path).splitlines()
    token, listed, twin, created = printed
    assert (len(token), len(twin)) == (64, 64)
    assert "(ci) of acme: member; produce:orders.*;" in listed
    assert created.startswith("Created the store ")
