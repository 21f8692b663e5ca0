# SPDX-License-Identifier: Apache-2.0
"""The contract that every storage driver keeps, as tests: ``pytest --pyargs zq.conformance``.

The author of a driver defines one fixture, ``open_store``, in the ``conftest.py`` of the folder where pytest starts. It
returns a function that opens the test's store, which is empty at first; each call opens a further connection. See
``api-ref/write-a-driver.md``.

Terms in the tests:

- A *verb* is a method of the storage API. A *round* is a run of its maintenance.
- A claim *lapses*, and so do its messages, if it expires before its consumer settles them.
- A message is *used up* if it has been claimed as often as allowed. The next claim *buries* it: it moves the message to
  the dead-letter queue.
- A message is *free* if it is not claimed, and *living* if it is neither finished nor expired.
- A *hold* is the time for which a claim keeps one of its messages.
- A *marker* is the position from which a listing continues.
"""

import pytest

pytest.register_assert_rewrite("zq.conformance.builders", "zq.conformance.topic_builders")
