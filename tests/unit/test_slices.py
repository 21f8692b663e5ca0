# SPDX-License-Identifier: Apache-2.0
"""How large the next slice of a large commit is."""

import pytest

from zq.broker.carrying import AIM, FIRST, Slices


def test_slices_grow_twofold_at_most_while_they_are_quick():
    slices = Slices(10, 1000)
    sizes = []
    for _ in range(5):
        sizes.append(slices.size)
        slices.took(AIM / 1000)
    assert sizes == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 1000]


def test_a_slow_slice_makes_the_next_one_as_much_smaller():
    slices = Slices(10, 1000)
    slices.took(2 * AIM)
    assert slices.size == FIRST // 2


def test_slices_have_at_least_what_the_store_is_no_quicker_below():
    slices = Slices(40, 1000)
    slices.took(100 * AIM)
    assert slices.size == 40


@pytest.mark.parametrize("most", [1, 7])
def test_the_bound_of_a_step_wins(most: int):
    slices = Slices(40, most)
    assert slices.size == most
    slices.took(AIM / 1000)
    slices.took(100 * AIM)
    assert slices.size == most
