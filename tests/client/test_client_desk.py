# SPDX-License-Identifier: Apache-2.0
"""What a consumer asks of the server and when, without either: moments are made up, answers too."""

from math import inf

from msgspec import Raw

from zq.client.claims import Taken
from zq.client.desk import Desk, Errand
from zq.client.habits import Habits, Limits
from zq.client.values import Delivery
from zq.errors import ClaimNotFound, Invalid, NotAuthorized, Unavailable
from zq.model import Settled
from zq.wire import settling


def desk_with(count: int, **habits: int) -> Desk:
    """A desk that claimed so many messages at moment 0."""
    desk = Desk(Habits(queue="jobs", ttl=60, **habits))
    bring(desk, [Delivery(f"m{number}", 600, 0, Raw(b"1"), claim_count=1) for number in range(count)], 0)
    return desk


def bring(desk: Desk, deliveries: list[Delivery], now: float) -> None:
    desk.received(Taken(f"c.{now}", deliveries), now, now)


def taken(desk: Desk, now: float) -> Delivery:
    delivery = desk.take(now)
    assert delivery is not None
    return delivery


def due(desk: Desk, now: float) -> Errand:
    found = errand(desk, now)
    assert found is not None
    return found


def errand(desk: Desk, now: float) -> Errand | None:
    """What the one keeper or the other would carry out."""
    found = [what for what in (desk.settlement(now), desk.renewal(now)) if isinstance(what, Errand)]
    return found[0] if found else None


def terms(errand: Errand) -> settling.Terms:
    return settling.terms(errand.call.body)


def test_a_claim_is_renewed_at_each_third_of_its_ttl_while_work_is_left() -> None:
    """Counted from the moment at which it was asked for; a claim without work is not renewed."""
    desk = desk_with(1)
    delivery = taken(desk, 1)
    assert errand(desk, 19) is None
    assert desk.renewal(19) == 20
    renewal = due(desk, 20)
    assert renewal.call.method == "PATCH"
    assert errand(desk, 21) is None, "one at a time"
    desk.went(renewal, None, 20)
    assert errand(desk, 39) is None
    assert due(desk, 40).call.method == "PATCH"
    desk.went(renewal, None, 40)
    desk.finish(delivery, delivery.id, 41)
    desk.went(due(desk, 41), Settled(deleted=1), 41)
    assert errand(desk, 1000) is None


def test_decisions_are_settled_together_after_a_second_or_with_the_last_of_the_claim() -> None:
    """Not one by one, and not later than that."""
    desk = desk_with(4)
    first, second, third, fourth = [taken(desk, 1) for _ in range(4)]
    assert desk.finish(first, first.id, 2)
    assert not desk.finish(second, second.id, 2.5)
    assert errand(desk, 2.9) is None
    assert desk.settlement(2.9) == 3
    settlement = due(desk, 3)
    assert terms(settlement).delete == ["m0", "m1"]
    desk.finish(third, third.id, 3.1)
    assert desk.finish(fourth, desk.habits.after_failure(fourth), 3.2)
    assert errand(desk, 9) is None, "one at a time"
    desk.went(settlement, Settled(deleted=2), 3)
    rest = terms(due(desk, 3.2))
    assert (rest.delete, rest.release) == (["m2"], [settling.Released("m3", 5)])


def test_no_message_of_a_claim_that_is_over_is_handed_out() -> None:
    """When its time is up, or when the server no longer knows it; what was not touched is not lost."""
    desk = desk_with(2)
    assert desk.take(60) is None
    assert desk.lost == []
    desk = desk_with(3)
    first, second = taken(desk, 1), taken(desk, 1)
    desk.finish(first, first.id, 2)
    settlement = due(desk, 3)
    desk.failed(settlement, ClaimNotFound("It is over."), 20)
    assert desk.take(4) is None
    desk.finish(second, second.id, 4)
    assert [delivery.id for delivery in desk.lost] == ["m0", "m1"]
    assert errand(desk, 100) is None


def test_there_is_nothing_to_wait_for_where_no_errand_can_come() -> None:
    """Whoever waits for the next one would never rest: of a claim that is settled, and of one that is over."""
    desk = desk_with(1)
    delivery = taken(desk, 1)
    desk.finish(delivery, delivery.id, 2)
    desk.went(due(desk, 2), Settled(deleted=1), 2)
    assert desk.settlement(3) == desk.renewal(3) == inf
    desk = desk_with(1)
    taken(desk, 1)
    desk.failed(due(desk, 20), ClaimNotFound("It is over."), 20)
    assert desk.settlement(3) == desk.renewal(3) == inf
    assert errand(desk, 30) is None


def test_a_message_that_lapsed_and_came_again_is_two_pieces_of_work() -> None:
    """The late end of the first does not finish the second."""
    desk = desk_with(1)
    late = taken(desk, 1)
    renewal = due(desk, 20)
    desk.failed(renewal, ClaimNotFound("It is over."), 20)
    bring(desk, [Delivery("m0", 600, 0, Raw(b"1"), claim_count=2)], 70)
    again = taken(desk, 71)
    desk.finish(late, late.id, 72)
    assert desk.lost == [late]
    desk.finish(again, again.id, 73)
    settlement = due(desk, 73)
    assert "c.70" in settlement.call.path


def test_lost_messages_that_a_settlement_tells_are_told() -> None:
    """Those and no others."""
    desk = desk_with(2)
    for _ in range(2):
        delivery = taken(desk, 1)
        desk.finish(delivery, delivery.id, 1)
    desk.went(due(desk, 1), Settled(deleted=1, lost=["m1"]), 1)
    assert [delivery.id for delivery in desk.lost] == ["m1"]


def test_one_refused_decision_is_found_among_many() -> None:
    """By halves; its message goes back, the others are settled, and the refusal is told once."""
    desk = desk_with(5)
    for _ in range(5):
        delivery = taken(desk, 1)
        if delivery.id == "m3":
            delivery.bury("there are no dead letters")
        desk.finish(delivery, delivery.id, 1)
    deleted, released = [], []
    while asked := errand(desk, 1):
        decided = terms(asked)
        if decided.bury:
            desk.failed(asked, Invalid("No."), 1)
        else:
            deleted += decided.delete
            released += decided.release
            desk.went(asked, Settled(), 1)
    assert sorted(deleted) == ["m0", "m1", "m2", "m4"]
    assert released == [settling.Released("m3")]
    assert len(desk.failures) == 1


def test_whoever_leaves_gives_back_all() -> None:
    """In hand: as after a failure, or as its worker said; waiting: without delay, so that order is kept."""
    desk = desk_with(4)
    plain, decided = taken(desk, 1), taken(desk, 1)
    decided.done()
    desk.leave(2)
    rest = terms(due(desk, 2))
    assert rest.delete == ["m1"]
    assert rest.release == [settling.Released(plain.id, 5), settling.Released("m2"), settling.Released("m3")]


def test_back_off_doubles_with_each_claim_up_to_what_the_server_allows() -> None:
    """Bounded by its largest delay; batches and waits likewise."""
    limits = Limits(max_wait=7, max_messages_per_claim_or_pop=20, max_message_delay=60)
    habits = Habits(queue="jobs", batch=1000, backoff=10).within(limits)
    assert (habits.batch, habits.wait) == (20, 7)
    counts = [0, 1, 2, 3, 4, 50]
    delays = [habits.after_failure(Delivery("m", 60, 0, Raw(b"1"), claim_count=count)).delay for count in counts]
    assert delays == [10, 10, 20, 40, 60, 60]


def test_settlements_with_large_bodies_are_split() -> None:
    """So that what was moved one by one is not refused together; one alone goes whatever its size."""
    desk = desk_with(3)
    for _ in range(3):
        delivery = taken(desk, 1)
        delivery.move("next", body="x" * 150_000)
        desk.finish(delivery, delivery.id, 1)
    moved = []
    while asked := errand(desk, 1):
        moved.append([move.id for move in terms(asked).move])
        desk.went(asked, Settled(moved=1), 1)
    assert moved == [["m0"], ["m1"], ["m2"]]


def test_a_renewal_that_failed_is_tried_later_and_later_and_told_once() -> None:
    """The server is left in peace; one that refused it is not asked again."""
    desk = desk_with(1)
    taken(desk, 1)
    now, moments = 20.0, []
    for _ in range(4):
        renewal = desk.renewal(now)
        assert isinstance(renewal, Errand)
        desk.failed(renewal, Unavailable("It is away."), now)
        later = desk.renewal(now)
        assert isinstance(later, float)
        now = later
        moments.append(now)
    assert moments == [26, 38, 62, 110]
    assert len(desk.news()[1]) == 1
    desk = desk_with(1)
    taken(desk, 1)
    desk.failed(due(desk, 20), NotAuthorized("No."), 20)
    assert desk.renewal(1000) == inf
    assert len(desk.news()[1]) == 1


def test_a_settlement_on_its_way_holds_up_no_renewal() -> None:
    """Not even of the same claim, of which some messages are still in work."""
    desk = desk_with(2)
    delivery, _ = taken(desk, 1), taken(desk, 1)
    desk.finish(delivery, delivery.id, 2)
    assert terms(due(desk, 3)).delete == ["m0"]
    renewal = desk.renewal(20)
    assert isinstance(renewal, Errand)
    assert renewal.call.method == "PATCH"


def test_an_errand_that_was_cut_off_is_handed_out_again() -> None:
    """The same request under the same key."""
    desk = desk_with(1)
    delivery = taken(desk, 1)
    desk.finish(delivery, delivery.id, 2)
    errands = [due(desk, 2)]
    assert desk.settlement(2) == inf
    desk.returned(errands[0])
    assert due(desk, 3) is errands[0]


def test_what_could_not_be_settled_is_told_and_not_tried_for_ever() -> None:
    """Its messages come back when the claim lapses."""
    desk = desk_with(1)
    delivery = taken(desk, 1)
    desk.finish(delivery, delivery.id, 1)
    desk.failed(due(desk, 1), Unavailable("The store cannot serve."), 1)
    assert errand(desk, 100) is None
    assert [type(failure) for failure in desk.failures] == [Unavailable]
