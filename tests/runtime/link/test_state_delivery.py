from gossipdp.runtime.link.state_delivery import Renewals


class Process:
    def __init__(self) -> None:
        self.told: list[tuple[int, bytes]] = []
        self.renewals = Renewals(lambda message, files: self.told.append((message.session, bytes(*files))))


def test_state_of_a_process_that_steps__is_told_at_once_each_time():
    process = Process()
    process.renewals.renew(1, b"a")
    assert process.renewals.submitted(1, b"its own") == b"its own"
    process.renewals.renew(1, b"b")
    assert process.told == [(1, b"a"), (1, b"b")]


def test_state_of_a_process_that_does_not_step__is_told_once_and_the_newest_with_its_next_snapshot():
    process = Process()
    for state in (b"a", b"b", b"c", b"d"):
        process.renewals.renew(1, state)
    assert process.told == [(1, b"a")]
    assert process.renewals.submitted(1, b"from before d") is None, "the newer state stands"
    assert process.told == [(1, b"a"), (1, b"d")]
    assert process.renewals.submitted(1, b"its own") == b"its own"


def test_new_session__is_told_the_first_state_that_comes():
    process = Process()
    process.renewals.renew(1, b"a")
    process.renewals.renew(1, b"b")
    process.renewals.ended()
    assert process.renewals.submitted(2, b"its own") == b"its own"
    process.renewals.renew(2, b"c")
    assert process.told == [(1, b"a"), (2, b"c")]
