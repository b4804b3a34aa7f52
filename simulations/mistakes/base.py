"""What one mistake is, which files they are made in, and where each is expected to be seen. No mistake stands here.

The text replaced is quoted as it stands in its file, where it must stand exactly once; when code moves on, its entry
follows. Mistakes are such as somebody might make, in what the papers and the algorithms ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TESTS", "Mutation"]


@dataclass(frozen=True)
class Mutation:
    """`mistake` says in words what somebody might have got wrong. `seen_by`: the test module, one test of it, or the
    stage expected to see it, if that is another than `TESTS` names for its file."""

    name: str
    mistake: str
    path: str
    old: str
    new: str
    seen_by: str = ""

    @property
    def first(self) -> str:
        """Where to look first; "" if nobody knows."""
        return self.seen_by or TESTS.get(self.path, "")


EXCHANGE = "gossipdp/protocol/exchange.py"
RESPONDER = "gossipdp/protocol/responder.py"
INITIATOR = "gossipdp/protocol/initiator.py"
AVERAGING = "gossipdp/protocol/averaging.py"
PAIRWISE = "gossipdp/algorithms/pairwise.py"
LEDGER = "gossipdp/algorithms/base.py"
MODULO = "gossipdp/codecs/modulo.py"
KERNELS = "gossipdp/codecs/kernels.py"
VIEW = "gossipdp/protocol/view.py"
SUSPICION = "gossipdp/protocol/suspicion.py"
DISSEMINATION = "gossipdp/protocol/dissemination.py"
SCHEDULE = "gossipdp/protocol/schedule.py"
HANDSHAKE = "gossipdp/runtime/handshake.py"
COPIES = "gossipdp/runtime/copies.py"
MEMBERSHIP = "gossipdp/protocol/membership.py"
PROGRESS = "gossipdp/protocol/progress.py"
ROUNDS = "gossipdp/protocol/rounds.py"
PARTNERS = "gossipdp/protocol/partners.py"
TRANSFER = "gossipdp/protocol/transfer.py"
FREEZING = "gossipdp/protocol/freezing.py"
ORIGIN = "gossipdp/protocol/origin.py"
FLOW = "gossipdp/protocol/flow.py"
PLAUSIBILITY = "gossipdp/protocol/plausibility.py"
BLOCKS = "gossipdp/protocol/blocks.py"
OWNERS = "gossipdp/protocol/rendezvous.py"
SHARDING = "gossipdp/protocol/sharding.py"
LAYOUT = "gossipdp/training/layout.py"
SESSION = "gossipdp/training/session.py"
ADAM = "gossipdp/training/adam.py"
KEEPER = "gossipdp/runtime/moments.py"
REUNION = "gossipdp/protocol/reunion.py"
SEEKING = "gossipdp/protocol/seeking.py"
FOLLOWING = "gossipdp/protocol/following.py"
LAG = "gossipdp/protocol/lag.py"
BUCKETS = "gossipdp/protocol/buckets.py"
BUDGET = "gossipdp/protocol/budget.py"
COMPARING = "gossipdp/protocol/anti_entropy.py"
MOMENTS = "gossipdp/protocol/moments.py"
MOMENTS_CODE = "gossipdp/codecs/moments.py"
LOAD = "gossipdp/protocol/load.py"
PACING = "gossipdp/protocol/pacing.py"
ATTACHING = "gossipdp/protocol/attaching.py"
PEER = "gossipdp/protocol/peer.py"
TEMPO = "gossipdp/protocol/tempo.py"
SPEED = "gossipdp/protocol/speed.py"
OUTBOUND = "gossipdp/protocol/outbound.py"
PROBING = "gossipdp/protocol/probing.py"
QUARANTINE = "gossipdp/protocol/quarantine.py"
CONDUCT = "gossipdp/protocol/conduct.py"
RUMOURS = "gossipdp/protocol/rumours.py"
EPOCHS = "gossipdp/protocol/epochs.py"
EPOCH_TALK = "gossipdp/protocol/epoch_talk.py"
RUMOUR_TREES = "gossipdp/protocol/rumour_trees.py"
RUMOUR_LINKS = "gossipdp/protocol/rumour_links.py"
RUMOUR_FETCHING = "gossipdp/protocol/rumour_fetching.py"
RUMOUR_STORE = "gossipdp/protocol/rumour_store.py"
RUMOUR_HEADER = "gossipdp/protocol/rumour_header.py"
RUMOUR_SUMMARY = "gossipdp/protocol/rumour_summary.py"
CREDIT = "gossipdp/protocol/credit.py"
SHARES = "gossipdp/protocol/shares.py"
TURNS = "gossipdp/protocol/turns.py"
APPLYING = "gossipdp/protocol/applying.py"
JUDGING = "gossipdp/protocol/judging.py"
INCREMENTS = "gossipdp/protocol/increments.py"
SPREADING = "gossipdp/protocol/spreading.py"
EPIDEMIC = "gossipdp/algorithms/epidemic.py"
FIXED_POINT = "gossipdp/algorithms/fixed_point.py"

TESTS = {
    RESPONDER: "tests/protocol/test_exchange.py",
    INITIATOR: "tests/protocol/test_exchange.py",
    AVERAGING: "tests/protocol/test_averaging.py",
    PARTNERS: "tests/protocol/test_averaging.py",
    PAIRWISE: "tests/algorithms/test_pairwise.py",
    LEDGER: "tests/algorithms/test_ledger.py",
    MODULO: "tests/codecs/test_codec_modulo.py",
    KERNELS: "tests/codecs/test_codec_modulo.py",
    VIEW: "tests/protocol/test_membership.py",
    SUSPICION: "tests/protocol/test_suspicion.py",
    DISSEMINATION: "tests/protocol/test_membership_lifeguard.py",
    SCHEDULE: "tests/protocol/test_schedule.py",
    HANDSHAKE: "tests/runtime/test_transport.py",
    COPIES: "tests/runtime/test_copies.py",
    MEMBERSHIP: "tests/protocol/test_membership.py",
    SEEKING: "tests/protocol/test_membership.py",
    PROGRESS: "tests/protocol/test_progress.py",
    ROUNDS: "tests/protocol/test_rounds.py",
    TRANSFER: "tests/protocol/test_transfer.py",
    FREEZING: "tests/protocol/test_transfer.py",
    ORIGIN: "tests/protocol/test_peer.py",
    FLOW: "tests/protocol/test_flow.py",
    PLAUSIBILITY: "tests/protocol/test_plausibility.py",
    BLOCKS: "tests/protocol/test_sharding.py",
    OWNERS: "tests/protocol/test_sharding.py",
    SHARDING: "tests/protocol/test_sharding.py",
    LAYOUT: "tests/training/test_layout.py",
    REUNION: "tests/protocol/test_reunion.py",
    FOLLOWING: "tests/protocol/test_reunion.py",
    LAG: "tests/protocol/test_lag.py",
    BUCKETS: "tests/protocol/test_buckets.py",
    BUDGET: "tests/protocol/test_budget.py",
    COMPARING: "tests/protocol/test_anti_entropy.py",
    MOMENTS: "tests/protocol/test_moments_transfer.py",
    MOMENTS_CODE: "tests/codecs/test_codec_moments.py",
    LOAD: "tests/protocol/test_load.py",
    PACING: "tests/protocol/test_pacing.py",
    TEMPO: "tests/protocol/test_tempo.py",
    SPEED: "tests/protocol/test_speed.py",
    PEER: "tests/protocol/test_state_age.py",
    OUTBOUND: "tests/protocol/test_outbound.py",
    PROBING: "tests/protocol/test_outbound.py",
    QUARANTINE: "tests/protocol/test_quarantine.py",
    CONDUCT: "tests/protocol/test_conduct.py",
    RUMOURS: "tests/protocol/test_rumours.py",
    EPOCHS: "tests/protocol/test_rumour_epochs.py",
    EPOCH_TALK: "tests/protocol/test_rumour_rules.py",
    RUMOUR_TREES: "tests/protocol/test_rumours.py",
    RUMOUR_LINKS: "tests/protocol/test_rumours.py",
    RUMOUR_FETCHING: "tests/protocol/test_rumour_units.py",
    RUMOUR_STORE: "tests/protocol/test_rumour_units.py",
    RUMOUR_HEADER: "tests/protocol/test_rumour_units.py",
    RUMOUR_SUMMARY: "tests/protocol/test_rumour_takeover.py",
    CREDIT: "tests/protocol/test_rumour_units.py",
    SHARES: "tests/protocol/test_spreading_units.py",
    TURNS: "tests/protocol/test_spreading_units.py",
    APPLYING: "tests/protocol/test_spreading_units.py",
    JUDGING: "tests/protocol/test_judging.py",
    INCREMENTS: "tests/protocol/test_spreading_units.py",
    SPREADING: "tests/simulations/test_epidemic_spreading.py",
    EPIDEMIC: "tests/algorithms/test_epidemic.py",
    FIXED_POINT: "tests/algorithms/test_fixed_ledger.py",
}
"""where a mistake in a file is expected to be seen: looked at first, before all else"""
