"""Stop strings: matches, text held back, and independence of how the text is divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_runtime.server.text.stop import StopFinder, StopStrings


def run(deltas, stops):
    finder = StopFinder(StopStrings(stops))
    shown = [finder.push(delta) for delta in deltas]
    return [*shown, finder.finish()], finder.matched


@pytest.mark.parametrize(
    ("deltas", "stops", "shown", "found"),
    [
        (["one two"], [], ["one two", ""], None),
        (["one two"], [" "], ["one", ""], " "),
        (["one t", "wo three"], ["two"], ["one ", "", ""], "two"),  # split across deltas
        (["one t", "en"], ["two"], ["one ", "ten", ""], None),  # held back for one that never comes
        (["one tw"], ["two"], ["one ", "tw"], None),  # released at the end
        (["aab"], ["ab"], ["a", ""], "ab"),  # a failed start may hold the real one
        (["a", "a", "b"], ["aab"], ["", "", "", ""], "aab"),
        (["abcd"], ["abcd", "bc"], ["a", ""], "bc"),  # complete first wins
        (["xabc"], ["bc", "abc"], ["x", ""], "abc"),  # same end: the earlier beginning
        (["abc"], ["abcd"], ["", "abc"], None),
        (["end", "more"], ["end"], ["", "", ""], "end"),  # nothing after it
        (["é", "è"], ["éè"], ["", "", ""], "éè"),
    ],
)
def test_a_stop_string_ends_the_text_before_it(deltas, stops, shown, found):
    assert run(deltas, stops) == (shown, found)


def first_match(text, stops):
    """Return the text up to the first stop, by trying every prefix: slow and plain."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(
    deltas=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
)
def test_the_division_of_the_text_never_matters(deltas, stops):
    shown, _ = run(deltas, stops)
    assert "".join(shown) == first_match("".join(deltas), stops)


@given(deltas=st.lists(st.text("ab", max_size=3), max_size=9), stop=st.text("ab", min_size=1, max_size=4))
def test_text_is_only_held_back_while_it_may_begin_a_stop_string(deltas, stop):
    finder, shown, seen = StopFinder(StopStrings([stop])), "", ""
    for delta in deltas:
        shown, seen = shown + finder.push(delta), seen + delta
        if finder.matched:
            return
        assert stop.startswith(seen[len(shown) :])
