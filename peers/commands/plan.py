"""`gossipdp plan`: what each way to train costs on a network, and which settings suit it."""

from __future__ import annotations

from typing import Any

import click

from peers.options import find_home, home_option, json_option

__all__ = ["plan"]


@click.command(
    epilog="\b\nExample:\n"
    "  gossipdp plan --parameters 1B --step-time 1 --hosts 8 \\\n"
    "                --bandwidth 100Mbit --latency 50ms"
)
@click.option("--parameters", metavar="N", help="Trained parameters: 1e9, 350M, 1B.")
@click.option("--step-time", metavar="SECONDS", help="Time of an optimizer step on a host of speed 1: 0.5, 500ms.")
@click.option("--hosts", metavar="N", help="Number of hosts.")
@click.option("--speeds", metavar="LIST", help="Relative speeds of the hosts, repeated up to --hosts: 1,1,2,4.")
@click.option("--bandwidth", metavar="RATE", help="Rate at which each host can send, and receive: 100Mbit, 1Gbit.")
@click.option("--latency", metavar="TIME", help="Delay one way between two hosts, half of what ping shows: 50ms.")
@click.option("--accept-lost", metavar="PERCENT", type=click.FloatRange(0, 90), default=5.0, show_default=True,
              help="Share of time that may be lost to the links.")  # fmt: skip
@click.option("--failures", type=click.Choice(["none", "some", "churn"]), default="none", show_default=True,
              help="Whether hosts stay, now and then die or pause, or come and go.")  # fmt: skip
@click.option("--price-per-gb", metavar="PRICE", help="Price of a GB (10^9 bytes) that a host sends.")
@click.option("--from-running", is_flag=True, help="Take figures from this host's peer; flags override them.")
@json_option
@home_option
@click.pass_context
def plan(
    ctx: click.Context, /, accept_lost: float, failures: str, from_running: bool, as_json: bool, **texts: str | None
) -> None:
    """Compare ways to train on a network, and choose settings.

    A simulated clock plays the rounds of each way. `every` is the number of steps of a round. Gossip has the default,
    or as many as an exchange needs, and DDP has 1. Other ways have the fewest steps, from the default to 1000, at which
    the links cost at most --accept-lost.

    `lost` is the share of all hosts' time in which they compute nothing. `links` is that share of the slowest host,
    which waits only for the network. `sent/h` is what a host sends in an hour; it receives as much. GB are 10^9 bytes.

    Memory is what a host needs besides the model, its gradients and its optimizer. Gossip: the daemon, and the memory
    that it shares with training (docs/limits.md). It also needs up to 8 bytes a parameter on disk. DiLoCo: anchor,
    momentum and difference in fp32, and at 4 bits the codes sent and received. Local SGD: a copy to reduce. DDP:
    buckets of gradients.

    The clock counts links and steps. It does not count cores, lost packets or the start of a run.
    """
    from peers import tables
    from peers.plan import show
    from peers.plan.advice import advice_for
    from peers.plan.choice import plan_for
    from peers.plan.clock import clocked
    from peers.plan.network import network_of, read
    from peers.plan.running import running

    given = {name: read(name, text) for name, text in texts.items() if text is not None}
    price = given.pop("price_per_gb", None)
    taken = running(find_home(ctx), given) if from_running else {}
    known: dict[str, Any] = {name: each.value for name, each in taken.items()}
    network = network_of(known | given, {name: each.how for name, each in taken.items()})
    made = plan_for(network, clocked, accept_lost / 100.0)
    advice = advice_for(made, failures, price)
    if as_json:
        tables.print_json(show.as_json(made, advice, price, taken))
    else:
        show.show(made, advice, price, taken)
