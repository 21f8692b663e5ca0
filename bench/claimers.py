# SPDX-License-Identifier: Apache-2.0
"""Claims of ten messages a second on one queue of a shared store, by the number of claimers.

``python -m bench.claimers [--store mongodb|redis] [--seconds N] [--rounds N] [--engine E]`` needs wrk on PATH. Two
servers each have half of the claimers. The command asserts nothing; only results of one run may be compared.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

from bench.http import fill, measure
from bench.peer import rows, store, workers
from tests.servers import ZqServer

CLAIM = next(row for row in rows() if row.name == "claim 10")
# Claims a second for which the queue is filled.
MOST = 1000


def claims(servers: list[ZqServer], claimers: int, seconds: int) -> float:
    """Return the claims a second of ``claimers`` clients, spread over the servers."""
    fill(servers[0].url, "one", MOST * seconds * CLAIM.drain, ttl=3600)
    busy = servers[: min(claimers, len(servers))]
    with ThreadPoolExecutor(len(busy)) as pool:
        share = claimers // len(busy)
        rates = pool.map(lambda server: measure(server.url, CLAIM, "one", seconds, connections=share), busy)
        return sum(rate.per_second for rate in rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["mongodb", "redis"], default="mongodb")
    parser.add_argument("--seconds", type=int, default=3, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], default="gunicorn")
    arguments = parser.parse_args()
    counts = (1, 4, 16)
    print(
        f"| {arguments.store}, one queue, two servers | " + " | ".join(f"{count} claimers" for count in counts) + " |"
    )
    print("|---|---|---|---|")
    with ExitStack() as stack:
        uri = stack.enter_context(store(arguments.store))[0]
        servers = [stack.enter_context(ZqServer(uri, engine=arguments.engine, config=workers(1))) for _ in range(2)]
        rounds = [[claims(servers, count, arguments.seconds) for count in counts] for _ in range(arguments.rounds)]
    figures = " | ".join(f"{median(each):.0f}" for each in zip(*rounds, strict=True))
    print(f"| claims of 10 a second, {arguments.engine} | {figures} |")


if __name__ == "__main__":
    main()
