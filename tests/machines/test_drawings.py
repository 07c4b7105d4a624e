"""Nested machines drawn, for Mermaid and for Graphviz, with the way that a thread took."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.machines import Fire, Machine, State, Step, anywhere, definition, diagram, dot, record


@record
class Order:
    paid: bool = False


@record
class Question:
    words: str


class Desk(Machine[Order]):
    ready = State(initial=True)
    talk = State()
    asking = State(parent=talk, initial=True)
    deep = State(parent=talk)
    thinking = State(parent=deep, initial=True)
    closed = State(final=True)
    failed = State(final=True)

    begin = ready.to(talk)
    ask = asking.to(thinking).on_choice(Question)
    back = deep.to(asking).on_signal()
    again = talk.to(thinking)
    late = talk.to(closed).after(timedelta(hours=1))
    stop = anywhere.to(failed).on_cancel()

    @ready.handler
    async def start(self, data: Order, step: Step) -> Fire:
        return self.begin()

    @asking.handler
    async def answer(self, data: Order, step: Step) -> Fire:
        return self.again()


PATH = [
    ("ready", "begin", "talk.asking"),
    ("talk.asking", "ask", "talk.deep.thinking"),
    ("talk.deep.thinking", "back", "talk.asking"),
    *[("talk.asking", "ask", "talk.deep.thinking")] * 5,
    ("talk.deep.thinking", "late", "closed"),
]

MERMAID = """\
stateDiagram-v2
    state "talk" as talk {
        [*] --> talk_asking
        state "deep" as talk_deep {
            [*] --> talk_deep_thinking
            state "thinking" as talk_deep_thinking
        }
        state "asking" as talk_asking
    }
    [*] --> ready
    state "anywhere" as anywhere
    ready --> talk_asking: begin
    anywhere --> failed: stop (on cancel)
    talk_asking --> talk_deep_thinking: ask (choice Question)
    talk_asking --> talk_deep_thinking: again
    talk --> closed: late (after 1 h)
    talk_deep --> talk_asking: back (signal)
    closed --> [*]
    failed --> [*]
"""


def test_composites_are_boxes_and_their_rows_are_drawn_once() -> None:
    assert diagram(Desk) == MERMAID
    assert diagram(definition(Desk)) == MERMAID


def test_a_path_is_coloured_and_its_rows_are_numbered() -> None:
    drawn = diagram(Desk, path=PATH).splitlines()
    assert "    ready --> talk_asking: (1) begin" in drawn
    assert "    talk_asking --> talk_deep_thinking: (2, 4, 5, 6 and 2 more) ask (choice Question)" in drawn
    assert "    talk --> closed: (9) late (after 1 h)" in drawn
    assert "    anywhere --> failed: stop (on cancel)" in drawn
    coloured = [line.split()[1] for line in drawn if line.endswith(" visited")]
    assert coloured == ["ready", "talk_asking", "talk_deep_thinking", "closed"]
    assert drawn[-1] == "    class closed last"


def test_what_a_path_has_and_the_machine_has_not_is_drawn_too() -> None:
    path = [("ready", "hop", "talk.gone"), ("talk.gone", "begin", "closed")]
    drawn = diagram(Desk, path=path)
    assert '        state "gone" as talk_gone\n' in drawn
    assert "ready --> talk_gone: (1) hop (not in this version)" in drawn
    assert "talk_gone --> closed: (2) begin (not in this version)" in drawn
    drawn = dot(Desk, path=path)
    assert '"ready" -> "talk.gone" [label="(1) hop (not in this version)"' in drawn
    assert '"talk.gone" [label="gone", fillcolor=' in drawn


def test_a_row_that_looks_like_another_is_not_counted_twice() -> None:
    class Twins(Machine[Order]):
        a = State(initial=True)
        b = State(final=True)
        go = (a.to(b, when=lambda order: order.paid) | a.to(b, when=lambda order: not order.paid)).on_signal()

    assert diagram(Twins, path=[("a", "go", "b")]).count("a --> b: (1) go (signal) [lambda]\n") == 1


DOT = """\
digraph "Desk" {
    compound=true;
    node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"];
    edge [fontname="Helvetica", fontsize=10];
    "[*]" [shape=point, width=0.15, fillcolor=black, label=""];
    subgraph "cluster_talk" {
        label="talk"; style=rounded; fontname="Helvetica";
        subgraph "cluster_talk.deep" {
            label="deep"; style=rounded; fontname="Helvetica";
            "talk.deep.thinking" [label="thinking"];
        }
        "talk.asking" [label="asking"];
    }
    "ready" [label="ready"];
    "closed" [label="closed", peripheries=2];
    "failed" [label="failed", peripheries=2];
    "[*]" -> "ready";
    "(anywhere)" [label="anywhere", style="rounded,dashed"];
    "ready" -> "talk.asking" [label="begin"];
    "(anywhere)" -> "failed" [label="stop (on cancel)"];
    "talk.asking" -> "talk.deep.thinking" [label="ask (choice Question)"];
    "talk.asking" -> "talk.deep.thinking" [label="again"];
    "talk.asking" -> "closed" [label="late (after 1 h)", ltail="cluster_talk"];
    "talk.deep.thinking" -> "talk.asking" [label="back (signal)", ltail="cluster_talk.deep"];
}
"""


def test_graphviz_is_given_the_same() -> None:
    assert dot(Desk) == DOT
    assert dot(definition(Desk)) == DOT


def test_graphviz_marks_the_path() -> None:
    drawn = dot(Desk, path=PATH)
    assert '"ready" -> "talk.asking" [label="(1) begin", color=' in drawn
    assert '"talk.asking" [label="asking", fillcolor=' in drawn
    assert (
        '"closed" [label="closed", peripheries=2, fillcolor="#cfe8cf", color="#2e7d32", penwidth=3];' in drawn
    )
    assert '"failed" [label="failed", peripheries=2];' in drawn


def named(name: str) -> Any:
    def guard(data: Order) -> bool:
        return data.paid

    guard.__name__ = name
    return guard


@pytest.mark.parametrize(
    ("name", "mermaid", "graphviz"),
    [
        ('a "b"', "[a #34;b#34;]", r"[a \"b\"]"),
        ("a: b; c", "[a#58; b#59; c]", "[a: b; c]"),
        ("a\nend\\", "[a end#92;]", r"[a end\\]"),
        ("</script>#%{}", "[/script#62;#35;#37;#123;#125;]", "[/script>#%{}]"),
    ],
)
def test_no_guard_s_name_breaks_a_drawing(name: str, mermaid: str, graphviz: str) -> None:
    class Odd(Machine[Order]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=named(name)).on_signal()

    assert f"    a --> b: go (signal) {mermaid}\n" in diagram(Odd)
    assert f'"a" -> "b" [label="go (signal) {graphviz}"];' in dot(Odd)


def test_no_state_s_name_is_taken_for_a_word_of_mermaid_or_for_another_state() -> None:
    class Words(Machine[Order]):
        Note = State(initial=True)
        a_b = State()
        a = State()
        b = State(parent=a, initial=True)
        anywhere = State()
        größe = State(final=True)
        go = (Note.to(a_b) | a_b.to(a) | a.to(anywhere)).on_signal()
        out = anywhere.to(größe).on_signal()

    drawn = diagram(Words).splitlines()
    assert '    state "Note" as Note_' in drawn
    assert "    Note_ --> a_b: go (signal)" in drawn
    assert '        state "b" as a_b__' not in drawn  # two ways to spell one name would be one state
    assert "    a_b --> a_b_: go (signal)" in drawn
    assert "    anywhere --> größe: out (signal)" in drawn
