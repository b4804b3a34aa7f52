"""The replica of one peer: builds the machines of its model in order."""

from __future__ import annotations

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.attachment import Attachment
from gossipdp.protocol.course.course import Course
from gossipdp.protocol.course.ending import Ending
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.course.sides import Absences, Sides
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.transfer.moments_holder import MomentsHolder

__all__ = ["Replica"]


class Replica(Course):
    """The model of one peer, its rounds, and its exchanges."""

    def __init__(self, parts: Parts) -> None:
        config, outputs, membership = parts.config, parts.outputs, parts.membership
        contribution, age = Contribution(parts.progress), Age()
        absences = Absences(parts.progress, contribution, config.apart_rounds * config.every)
        sides = Sides(membership, absences, membership.config.join_interval)
        pacing = Pacing(config.pacing, outputs, membership, parts.speed, contribution)
        rounds = Rounds(outputs, config.ahead)
        averaging = Averaging(parts, pacing, rounds, contribution, age, sides.apart)
        moments = MomentsHolder(
            config.transfer,
            outputs,
            sign=parts.sign,
            verify=parts.verify,
            random=parts.random,
            incarnation=membership.me.incarnation,
            enabled=config.moments,
        )
        ending = Ending(parts, contribution, age, sides.apart, pacing, rounds, averaging)
        attachment = Attachment(moments, outputs)
        super().__init__(parts, contribution, age, sides, pacing, rounds, averaging, moments, attachment, ending)
