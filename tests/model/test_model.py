# SPDX-License-Identifier: Apache-2.0
"""A store and the oracle: sequences of verbs that Hypothesis chooses, and two that once broke other queues.

``ZQ_EXAMPLES=80 ZQ_SEED=7 pytest tests/model`` runs more examples than a campaign, from another seed.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import RestartingMachine, StoreMachine
from tests.model.pair import Holder
from tests.rotation import examples


def budget(holder: Holder, most: int) -> settings:
    """Return settings for at most ``most`` examples; a quarter of them on stores where each example takes a second."""
    few = most // 4 if holder.uri.startswith(("mongodb", "swift", "s3")) else most
    return settings(max_examples=examples(few), stateful_step_count=40, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(36000)
def test_the_store_agrees_with_the_oracle(holder: Holder):
    """All verbs in any order at any time have the results and errors of the oracle."""
    run_state_machine_as_test(lambda: StoreMachine(holder), settings=budget(holder, 60))


@pytest.mark.durable
@pytest.mark.timeout(36000)
def test_a_store_that_restarts_agrees_with_the_oracle(holder: Holder):
    """The store is closed and reopened between any two verbs."""
    run_state_machine_as_test(lambda: RestartingMachine(holder), settings=budget(holder, 12))


def test_a_lapsed_claim_in_front_of_a_live_one(holder: Holder):
    """A claim takes the message of an expired claim in front, and not that of a live claim behind it."""
    machine = StoreMachine(holder)
    machine.post(at=0, batch=[(3600, 0, "alice")] * 3)
    machine.claim(at=0, limit=1, ttl=5, grace=0, reuse=1)
    machine.claim(at=0, limit=1, ttl=300, grace=0, reuse=1)
    machine.tick(seconds=60)
    machine.claim(at=0, limit=10, ttl=60, grace=0, reuse=1)
    assert [entry.claim for entry in machine.oracle.queues[machine.queues[0]]] == ["claim.2", "claim.1", "claim.2"]
    machine.claim_get(at=0, pick=1)
    machine.pop(at=0, limit=10)
    machine.teardown()


def test_a_delayed_message_behind_a_ready_one(holder: Holder):
    """A claim or a pop with a larger limit does not take the delayed message before its time."""
    machine = StoreMachine(holder)
    machine.post(at=0, batch=[(3600, 0, "alice"), (3600, 60, "alice")])
    machine.claim(at=0, limit=10, ttl=300, grace=0, reuse=1)
    machine.pop(at=0, limit=10)
    assert [entry.claim for entry in machine.oracle.queues[machine.queues[0]]] == ["claim.0", ""]
    machine.tick_to(pick=0, offset=-0.001)
    machine.claim(at=0, limit=10, ttl=300, grace=0, reuse=1)
    machine.tick_to(pick=0, offset=0)
    machine.claim(at=0, limit=10, ttl=300, grace=0, reuse=1)
    assert [entry.claim for entry in machine.oracle.queues[machine.queues[0]]] == ["claim.0", "claim.2"]
    machine.teardown()
