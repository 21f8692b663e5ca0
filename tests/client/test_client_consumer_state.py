# SPDX-License-Identifier: Apache-2.0
"""The requests of a consumer and their times, without I/O: the tests supply times and responses."""

from math import inf

from msgspec import Raw

from zq.client.claims import ClaimedDeliveries
from zq.client.consumer_state import ConsumerLimits, ConsumerOptions, ConsumerState, PendingRequest
from zq.client.values import Delivery
from zq.errors import ClaimNotFound, Invalid, NotAuthorized, Unavailable
from zq.model import SettleResult
from zq.wire import extensions


def state_with(count: int, **options: int) -> ConsumerState:
    """Return the state of a consumer that claimed `count` messages at time 0."""
    state = ConsumerState(ConsumerOptions(queue="jobs", ttl=60, **options))
    bring(state, [Delivery(f"m{number}", 600, 0, Raw(b"1"), claim_count=1) for number in range(count)], 0)
    return state


def bring(state: ConsumerState, deliveries: list[Delivery], now: float) -> None:
    state.add_claimed(ClaimedDeliveries(f"c.{now}", deliveries), now, now)


def taken(state: ConsumerState, now: float) -> Delivery:
    delivery = state.take(now)
    assert delivery is not None
    return delivery


def due(state: ConsumerState, now: float) -> PendingRequest:
    found = due_or_none(state, now)
    assert found is not None
    return found


def due_or_none(state: ConsumerState, now: float) -> PendingRequest | None:
    """Return the request that either maintenance thread would send."""
    found = [what for what in (state.next_settlement(now), state.next_renewal(now)) if isinstance(what, PendingRequest)]
    return found[0] if found else None


def terms(request: PendingRequest) -> extensions.SettleTerms:
    return extensions.settle_terms(request.call.body)


def test_a_claim_is_renewed_at_each_third_of_its_ttl_while_work_is_left() -> None:
    """The time counts from the claim request; a claim whose messages are settled is not renewed."""
    state = state_with(1)
    delivery = taken(state, 1)
    assert due_or_none(state, 19) is None
    assert state.next_renewal(19) == 20
    renewal = due(state, 20)
    assert renewal.call.method == "PATCH"
    assert due_or_none(state, 21) is None, "one at a time"
    state.record_success(renewal, None, 20)
    assert due_or_none(state, 39) is None
    assert due(state, 40).call.method == "PATCH"
    state.record_success(renewal, None, 40)
    state.finish(delivery, delivery.id, 41)
    state.record_success(due(state, 41), SettleResult(deleted=1), 41)
    assert due_or_none(state, 1000) is None


def test_decisions_are_settled_together_after_a_second_or_with_the_last_of_the_claim() -> None:
    """Decisions are not settled one by one."""
    state = state_with(4)
    first, second, third, fourth = [taken(state, 1) for _ in range(4)]
    assert state.finish(first, first.id, 2)
    assert not state.finish(second, second.id, 2.5)
    assert due_or_none(state, 2.9) is None
    assert state.next_settlement(2.9) == 3
    settlement = due(state, 3)
    assert terms(settlement).delete == ["m0", "m1"]
    state.finish(third, third.id, 3.1)
    assert state.finish(fourth, state.options.release_after_failure(fourth), 3.2)
    assert due_or_none(state, 9) is None, "one at a time"
    state.record_success(settlement, SettleResult(deleted=2), 3)
    rest = terms(due(state, 3.2))
    assert (rest.delete, rest.release) == (["m2"], [extensions.ReleaseTerms("m3", 5)])


def test_no_message_of_a_claim_that_is_over_is_handed_out() -> None:
    """The claim has expired or the server no longer knows it; untouched messages do not count as lost."""
    state = state_with(2)
    assert state.take(60) is None
    assert state.lost == []
    state = state_with(3)
    first, second = taken(state, 1), taken(state, 1)
    state.finish(first, first.id, 2)
    settlement = due(state, 3)
    state.record_failure(settlement, ClaimNotFound("It is over."), 20)
    assert state.take(4) is None
    state.finish(second, second.id, 4)
    assert [delivery.id for delivery in state.lost] == ["m0", "m1"]
    assert due_or_none(state, 100) is None


def test_no_request_is_awaited_where_none_can_come() -> None:
    """A thread that waited for a request of a settled or expired claim would spin."""
    state = state_with(1)
    delivery = taken(state, 1)
    state.finish(delivery, delivery.id, 2)
    state.record_success(due(state, 2), SettleResult(deleted=1), 2)
    assert state.next_settlement(3) == state.next_renewal(3) == inf
    state = state_with(1)
    taken(state, 1)
    state.record_failure(due(state, 20), ClaimNotFound("It is over."), 20)
    assert state.next_settlement(3) == state.next_renewal(3) == inf
    assert due_or_none(state, 30) is None


def test_a_message_that_lapsed_and_came_again_is_two_pieces_of_work() -> None:
    """The late end of the first delivery does not finish the second."""
    state = state_with(1)
    late = taken(state, 1)
    renewal = due(state, 20)
    state.record_failure(renewal, ClaimNotFound("It is over."), 20)
    bring(state, [Delivery("m0", 600, 0, Raw(b"1"), claim_count=2)], 70)
    again = taken(state, 71)
    state.finish(late, late.id, 72)
    assert state.lost == [late]
    state.finish(again, again.id, 73)
    settlement = due(state, 73)
    assert "c.70" in settlement.call.path


def test_lost_messages_in_the_answer_of_a_settlement_are_reported() -> None:
    """Only these messages are reported."""
    state = state_with(2)
    for _ in range(2):
        delivery = taken(state, 1)
        state.finish(delivery, delivery.id, 1)
    state.record_success(due(state, 1), SettleResult(deleted=1, lost=["m1"]), 1)
    assert [delivery.id for delivery in state.lost] == ["m1"]


def test_one_refused_decision_is_found_among_many() -> None:
    """Bisection finds the decision: its message is released, the others are settled, one error is reported."""
    state = state_with(5)
    for _ in range(5):
        delivery = taken(state, 1)
        if delivery.id == "m3":
            delivery.bury("there are no dead letters")
        state.finish(delivery, delivery.id, 1)
    deleted, released = [], []
    while asked := due_or_none(state, 1):
        decided = terms(asked)
        if decided.bury:
            state.record_failure(asked, Invalid("No."), 1)
        else:
            deleted += decided.delete
            released += decided.release
            state.record_success(asked, SettleResult(), 1)
    assert sorted(deleted) == ["m0", "m1", "m2", "m4"]
    assert released == [extensions.ReleaseTerms("m3")]
    assert len(state.failures) == 1


def test_closing_gives_back_all_messages() -> None:
    """Unfinished messages are released like failures, unless decided; waiting ones keep their order."""
    state = state_with(4)
    plain, decided = taken(state, 1), taken(state, 1)
    decided.done()
    state.close(2)
    rest = terms(due(state, 2))
    assert rest.delete == ["m1"]
    assert rest.release == [
        extensions.ReleaseTerms(plain.id, 5),
        extensions.ReleaseTerms("m2"),
        extensions.ReleaseTerms("m3"),
    ]


def test_back_off_doubles_with_each_claim_up_to_what_the_server_allows() -> None:
    """The back-off is limited by the server's maximum delay; batch and wait have similar limits."""
    limits = ConsumerLimits(max_wait=7, max_messages_per_claim_or_pop=20, max_message_delay=60)
    options = ConsumerOptions(queue="jobs", batch=1000, backoff=10).apply_limits(limits)
    assert (options.batch, options.wait) == (20, 7)
    counts = [0, 1, 2, 3, 4, 50]
    delays = [
        options.release_after_failure(Delivery("m", 60, 0, Raw(b"1"), claim_count=count)).delay for count in counts
    ]
    assert delays == [10, 10, 20, 40, 60, 60]


def test_settlements_with_large_bodies_are_split() -> None:
    """Moves that fit one by one must not exceed the limit together; a single move is sent whatever its size."""
    state = state_with(3)
    for _ in range(3):
        delivery = taken(state, 1)
        delivery.move("next", body="x" * 150_000)
        state.finish(delivery, delivery.id, 1)
    moved = []
    while asked := due_or_none(state, 1):
        moved.append([move.id for move in terms(asked).move])
        state.record_success(asked, SettleResult(moved=1), 1)
    assert moved == [["m0"], ["m1"], ["m2"]]


def test_a_failed_renewal_is_tried_later_and_later_and_reported_once() -> None:
    """The pauses double, and a rejected renewal is not retried."""
    state = state_with(1)
    taken(state, 1)
    now, moments = 20.0, []
    for _ in range(4):
        renewal = state.next_renewal(now)
        assert isinstance(renewal, PendingRequest)
        state.record_failure(renewal, Unavailable("It is away."), now)
        later = state.next_renewal(now)
        assert isinstance(later, float)
        now = later
        moments.append(now)
    assert moments == [26, 38, 62, 110]
    assert len(state.take_unreported()[1]) == 1
    state = state_with(1)
    taken(state, 1)
    state.record_failure(due(state, 20), NotAuthorized("No."), 20)
    assert state.next_renewal(1000) == inf
    assert len(state.take_unreported()[1]) == 1


def test_a_settlement_on_its_way_holds_up_no_renewal() -> None:
    """The claim of the settlement is renewed, too, because some of its messages are still in work."""
    state = state_with(2)
    delivery, _ = taken(state, 1), taken(state, 1)
    state.finish(delivery, delivery.id, 2)
    assert terms(due(state, 3)).delete == ["m0"]
    renewal = state.next_renewal(20)
    assert isinstance(renewal, PendingRequest)
    assert renewal.call.method == "PATCH"


def test_an_interrupted_settlement_is_handed_out_again() -> None:
    """The same request is returned with the same idempotency key."""
    state = state_with(1)
    delivery = taken(state, 1)
    state.finish(delivery, delivery.id, 2)
    requests = [due(state, 2)]
    assert state.next_settlement(2) == inf
    state.record_interruption(requests[0])
    assert due(state, 3) is requests[0]


def test_a_failed_settlement_is_reported_and_not_tried_for_ever() -> None:
    """The messages are redelivered after the claim expires."""
    state = state_with(1)
    delivery = taken(state, 1)
    state.finish(delivery, delivery.id, 1)
    state.record_failure(due(state, 1), Unavailable("The store is unavailable."), 1)
    assert due_or_none(state, 100) is None
    assert [type(failure) for failure in state.failures] == [Unavailable]
