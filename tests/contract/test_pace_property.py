"""Whatever is asked for and whenever: no minute holds more starts than its limit, and none are held up."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.stores import Share
from perdure.stores._shares import MINUTE, pace

requests = st.lists(
    st.tuples(
        st.integers(0, 700),
        st.one_of(st.sampled_from((0, 1, MINUTE // 10, MINUTE)), st.integers(0, 2 * MINUTE)),
    ),
    max_size=60,
)


def share(per_minute: int, starts: int) -> Share:
    return Share(worker="w", limit="l", at_once=None, per_minute=per_minute, held=0, starts=starts)


@given(per_minute=st.integers(1, 600), asked=requests)
@settings(max_examples=200)
def test_no_minute_holds_more_starts_than_its_limit(per_minute: int, asked: list[tuple[int, int]]) -> None:
    now, full_at, granted = 1_800_000_000_000_000, 0, list[int]()
    for starts, pause in asked:
        now += pause
        paced = pace(share(per_minute, starts), full_at, now)
        full_at = paced.full_at
        assert 0 <= paced.starts <= starts
        assert (paced.again is None) == (paced.starts == starts)
        if paced.again is not None:
            assert now < paced.again <= now + MINUTE + per_minute  # rounding: a microsecond a start
            assert pace(share(per_minute, 1), full_at, paced.again).starts == 1
            assert pace(share(per_minute, 1), full_at, paced.again - 1).starts == 0
        granted += [now] * paced.starts
    for first, at in enumerate(granted):
        assert bisect_left(granted, at + MINUTE) - first <= per_minute


@given(per_minute=st.integers(1, 600))
@settings(max_examples=50)
def test_a_clock_that_is_set_back_stops_nobody_for_long(per_minute: int) -> None:
    now = 1_800_000_000_000_000
    full_at = pace(share(per_minute, 600), 0, now).full_at
    back = pace(share(per_minute, 1), full_at, now - 1000 * MINUTE)
    assert back.again is None or back.again <= now - 998 * MINUTE
