"""A daemon's part in decisions, for the tests of the commands: it answers from a real register. Not a test."""

from pathlib import Path
from typing import Any

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import SECRET
from gossipdp.protocol.wire.messages import Decision
from gossipdp.runtime import decisions_file
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from peers import control, decisions, home


class Office:
    """Stands in for `control.ask` on a founder's host. `others`: keys of further members, by name."""

    def __init__(self, monkeypatch: Any, founder: Path, others: dict[str, Identity], **row: Any) -> None:
        known = home.network_of(founder)
        assert known is not None
        self.home, self.lacks = founder, list[str]()
        self.takes = True
        """whether this host takes a new secret"""
        kept = decisions_file.load_decisions(founder)
        operator = bytes.fromhex(known.operator)
        me = Identity.load(founder).id
        self.admission = Admission(
            me, network=known.name, operator=operator, verify=Identity.verify, decisions=kept.decisions
        )
        mine = {"id": me.hex(), "name": "host0", "state": "alive", "me": True, "protocol": 4, "known": None}
        rest = [
            {"id": other.id.hex(), "name": name, "state": "alive", "protocol": 4, "me": False, "known": 60.0} | row
            for name, other in others.items()
        ]
        self.rows = [mine, *rest]
        monkeypatch.setattr(control, "ask", self)

    def __call__(self, _home: Path, verb: str, **args: Any) -> Any:
        match verb:
            case "members":
                return {"members": self.rows}
            case "decisions":
                return decisions.describe(self.admission, NetworkSecret.load(self.home).generation)
            case "status":
                return {"secret": {"newest": self.admission.generation, "lacks": self.lacks}}
            case "invite":
                return {"seeds": ["10.0.0.1:4710", ""]}
        made = decisions.decode(args["decision"])
        stands = bool(self.admission.take((made,)))
        if stands and made.secret is not None and self.takes:
            me, secret = Identity.load(self.home), NetworkSecret.load(self.home)
            renewed = me.unseal(made.secret.boxes[made.allowed.index(me.id)])
            assert renewed is not None
            secret.renewed(made.number, renewed).replace(self.home)
        return {"stands": stands, "saved": True}

    @property
    def renewal(self) -> Decision:
        """The decision about the network's secret."""
        known = self.admission.about(SECRET)
        assert known is not None
        return known
