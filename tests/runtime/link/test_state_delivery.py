from gossipdp.runtime.link.state_delivery import StateDelivery


class Process:
    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.delivery = StateDelivery(lambda message, files: self.sent.append((message.session, bytes(*files))))


def test_process_steps__each_state_is_sent_at_once():
    process = Process()
    process.delivery.renew(1, b"a")
    assert process.delivery.submitted(1, b"its own") == b"its own"
    process.delivery.renew(1, b"b")
    assert process.sent == [(1, b"a"), (1, b"b")]


def test_process_does_not_step__one_state_is_sent__and_the_newest_after_its_next_snapshot():
    process = Process()
    for state in (b"a", b"b", b"c", b"d"):
        process.delivery.renew(1, state)
    assert process.sent == [(1, b"a")]
    assert process.delivery.submitted(1, b"from before d") is None, "the newer state stands"
    assert process.sent == [(1, b"a"), (1, b"d")]
    assert process.delivery.submitted(1, b"its own") == b"its own"


def test_new_session__the_next_state_is_sent_at_once():
    process = Process()
    process.delivery.renew(1, b"a")
    process.delivery.renew(1, b"b")
    process.delivery.end()
    assert process.delivery.submitted(2, b"its own") == b"its own"
    process.delivery.renew(2, b"c")
    assert process.sent == [(1, b"a"), (2, b"c")]
