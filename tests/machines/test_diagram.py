"""A machine drawn."""

from datetime import timedelta

from perdure.machines import Fire, Machine, State, Step, diagram, record


@record
class Order:
    paid: bool = False


class Shop(Machine[Order]):
    cart = State(initial=True)
    end = State()
    shipped = State(final=True)

    check = cart.to(end, when=lambda order: order.paid)
    ask = cart.to(cart)
    paid = end.to(shipped).on_signal(bool)
    close = end.to(shipped).on_signal()
    forget = end.to(shipped).after(timedelta(days=1, minutes=90, milliseconds=5))
    broken = cart.to(shipped).on_failure(ValueError, KeyError)
    failed = cart.to(end).on_failure()

    @cart.handler
    async def look(self, data: Order, step: Step) -> Fire:
        return self.ask()


def test_every_state_and_row_is_drawn() -> None:
    assert diagram(Shop) == (
        "stateDiagram-v2\n"
        '    state "end" as end_\n'
        "    [*] --> cart\n"
        "    cart --> end_: check [lambda]\n"
        "    cart --> cart: ask\n"
        "    cart --> shipped: broken (on ValueError or KeyError)\n"
        "    cart --> end_: failed (on any error)\n"
        "    end_ --> shipped: paid (signal bool)\n"
        "    end_ --> shipped: close (signal)\n"
        "    end_ --> shipped: forget (after 1 d 1 h 30 min 5 ms)\n"
        "    shipped --> [*]\n"
    )


def test_a_renamed_state_never_takes_another_ones_place() -> None:
    class Words(Machine[Order]):
        end = State(initial=True)
        end_ = State(final=True)
        go = end.to(end_)

        @end.handler
        async def run(self, data: Order, step: Step) -> Fire:
            return self.go()

    assert 'state "end" as end__' in diagram(Words)
    assert "end__ --> end_: go" in diagram(Words)
