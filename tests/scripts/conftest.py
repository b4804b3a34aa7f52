"""Scripts of other people: short training scripts that do something unusual, as real processes at two real daemons.

How to add a script:

1. Write `tests/scripts/WHAT_IT_DOES.py`: a training script as a user would write it, with `gossipdp.attach`. It trains
   the model of `model.py`, because a network trains one schema and all scripts share the network. It starts from the
   parameters that earlier scripts have left. Its first argument is the number of its host, 0 or 1.
2. It reports with `say(...)` of `beside.py`, one JSON object a line. It waits for its twin on the other host with
   `meet(name)`. It trains until its daemon has exchanged, with `for step in steps(exchanges=3):`. It never sleeps.
3. Write a test `def test_state_x_event_x_result(scripts)`, with `first, second = scripts.run("WHAT_IT_DOES.py")`.
   `first.said` holds what the script has reported, `first.stderr` what it has logged.

`Pair.run` in `pair.py` has options: one host only, variables, an exit code other than 0, a look at the daemons while
the scripts wait. A script that needs another schema or other settings starts its own network: `with Pair(directory)`,
which takes about 5 s of a core. A script should take about 2 s, and all together at most 90 s of `make test`.
"""

from collections.abc import Iterator

import pytest

from tests.scripts.pair import Pair


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two daemons, shared by all scripts that one pytest process runs."""
    with Pair(tmp_path_factory.mktemp("scripts")) as pair:
        yield pair
