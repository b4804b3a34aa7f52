"""What a model keeps in buffers and frozen parameters: constants, queues, flags, counters, a teacher."""

from pathlib import Path

import pytest

from simulations.processes.namespaces.processes import Host
from simulations.processes.progress import until
from tests.scripts.pair import Pair

pytestmark = pytest.mark.processes


def clock(host: Host) -> int:
    """The network's clock in steps, as the host's daemon knows it."""
    return int(host.status()["clock"])


@pytest.mark.long
def test_a_joiner_of_a_model_with_constants_and_state__it_has_the_founders_and_constants_keep_every_bit(
    tmp_path: Path,
) -> None:
    with Pair(tmp_path) as pair:
        founder, joiner = pair.hosts

        def heard() -> bool:
            return clock(joiner) >= clock(founder) > 0

        heard_of_it = {"trained": lambda: until("the joiner has heard of the steps", heard, pair.hosts)}
        first, second = pair.run("constants_and_state.py", at=heard_of_it)
    begun, trained, ended = first.said
    own, joined, later = second.said
    assert own["constants"] != begun["constants"]
    for said in (trained, ended, joined, later):
        assert said["constants"] == begun["constants"], "before and after exchanges, on both hosts"
        assert all(abs(norm - 1.0) < 1e-5 for norm in said["norms"]), "the queue is not averaged"
    assert joined["started"] == 1 and own["started"] == 0
    assert joined["batches"] > 0 == own["batches"]
    assert joined["queue"] != own["queue"]
    assert joined["teacher"] != begun["teacher"] == own["teacher"], "the teacher that moved came with the model"
    assert later["queue"] != ended["queue"], "from then on it is each host's own"


def test_a_script_that_excludes_other_tensors_than_the_network__the_difference_is_named(scripts: Pair) -> None:
    scripts.run("plain_loop.py")
    (only,) = scripts.run("excludes_alone.py", hosts=[0])
    assert only.last["code"] == "GD-303" and "memory.queue is excluded in this model" in only.last["seen"]
