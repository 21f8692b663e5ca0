# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.expiry [sweep] [space] [claims] [--store S] ...`` runs the named parts, by default all.

It asserts nothing; only results of one run may be compared, because of the machine's other load. Each part prints a
table as soon as it is complete, and can run by itself; ``claims`` takes some minutes a round.
"""

import argparse

from bench.expiry import claims, space, sweep

PARTS = {"sweep": sweep.run, "space": space.run, "claims": claims.run}


def numbers(text: str) -> list[int]:
    return [int(number.replace("_", "")) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.expiry", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default: all of them")
    parser.add_argument("--store", choices=["rocksdb", "redis", "mongodb"], default="rocksdb")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind; the median is shown")
    parser.add_argument(
        "--living",
        type=numbers,
        default=[100_000, 1_000_000, 3_000_000],
        help="sweep: messages that live, as 1000,9000",
    )
    parser.add_argument("--messages", type=int, default=400_000, help="space: messages, of which every other expires")
    parser.add_argument("--due", type=int, default=1_000_000, help="claims: messages that fall due at once")
    parser.add_argument("--seconds", type=int, default=20, help="claims: seconds before and after")
    parser.add_argument("--patience", type=int, default=240, help="claims: most seconds until all of them must be gone")
    parser.add_argument("--connections", type=int, default=8, help="claims: clients that claim without a pause")
    parser.add_argument("--rate", type=int, default=0, help="claims: claims a second of all clients; 0 = all they can")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    for name in arguments.parts or PARTS:
        PARTS[name](arguments)


if __name__ == "__main__":
    main()
