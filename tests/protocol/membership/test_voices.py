"""Whose word counts: all members' while none is proven, then only the proven ones'."""

import pytest

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import NETWORK
from gossipdp.protocol.membership.contacts import Contacts
from gossipdp.protocol.wire.messages import Decision, Verdict

LONG = 100.0
"""seconds after which a member is proven"""
A, B, C, D = "abcd"


def contacts(heard=None, earlier=None, vouched=()):
    """heard: member -> times of its messages. earlier: seconds of earlier lives."""
    named = Decision(1, Verdict.CLOSED, NETWORK, allowed=vouched)
    made = Contacts(LONG, Admission(b"me", operator=b"operator", verify=lambda *_: True, decisions=[named]))
    for peer, seconds in (earlier or {}).items():
        made.known_before(peer, seconds)
    for peer, times in (heard or {}).items():
        for time in times:
            made.hear(peer, time)
    return made


@pytest.mark.parametrize(
    ("heard", "earlier", "vouched", "voices"),
    [
        pytest.param({}, {}, (), [A, B, C, D], id="a new network, or a late joiner: nobody is proven"),
        pytest.param({A: (0, 99), B: (50, 99)}, {}, (), [A, B, C, D], id="a young network"),
        pytest.param({A: (0, 50, 100), B: (50, 100)}, {}, (), [A], id="one is known for long: the others are young"),
        pytest.param({A: (0, 100), B: (0, 120), C: (90, 120)}, {}, (), [A, B], id="an old network"),
        pytest.param({A: (300,)}, {A: 100.0}, (), [A], id="known before a restart"),
        pytest.param({}, {A: 100.0}, (), [A], id="known before a restart, and not here yet: strangers do not count"),
        pytest.param({A: (10, 70)}, {A: 50.0}, (), [A], id="both lives add up"),
        pytest.param({A: (10, 40)}, {A: 50.0}, (), [A, B, C, D], id="both lives are too short"),
        pytest.param({A: (10,), B: (10,)}, {}, (B,), [B], id="the operator names it"),
    ],
)
def test_voices(heard, earlier, vouched, voices):
    assert contacts(heard, earlier, vouched).voices([A, B, C, D]) == voices


def test_member_that_is_forgotten__it_must_prove_itself_again_and_strangers_get_no_voice():
    made = contacts({A: (0, 100), B: (0, 100)})
    made.forget(A)
    made.hear(A, 200)
    assert made.voices([A, B, C]) == [B] and made.known_for(A) == 0.0


def test_crowd_of_keys_that_speak__limits_of_hearsay_follow_the_proven_ones():
    made = contacts({A: (0, 100), B: (0, 100)})
    for number in range(200):
        made.hear(f"young {number}", 100)
    assert made.acquainted == 2 and made.heard_from == 202
