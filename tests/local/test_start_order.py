"""The order of tests in parallel processes."""

import pytest

from tests.start_order import long_tests_first

TESTS = list("abcdefghij")


def test_each_process_starts_with_its_longest_tests():
    seconds = {1: 5.0, 4: 60.0, 7: 200.0, 8: 20.0, 9: 100.0}
    order = long_tests_first(TESTS, seconds, 3)
    assert "".join(order) == "hac" + "jdf" + "eibg"


@pytest.mark.parametrize("processes", [1, 2, 7, 20])
def test_no_test_is_lost_with_any_number_of_processes(processes):
    assert sorted(long_tests_first(TESTS, {0: 1.0, 9: 2.0, 5: 3.0}, processes)) == TESTS
    assert long_tests_first([], {}, processes) == []


def test_tests_without_a_duration_keep_their_order():
    assert long_tests_first(TESTS, {}, 3) == TESTS
