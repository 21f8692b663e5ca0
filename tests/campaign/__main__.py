# SPDX-License-Identifier: Apache-2.0
"""The command ``devstack/campaign``: tests that are too slow for every change, in parts of at most an hour.

Each part runs folders of ``tests/campaign`` and the daily tests of its subject, with all rows of their tables and all
random examples (``tests/rotation.py``). An interrupted part continues where it stopped if it is run again at the same
commit with the same seed and store; failed tests run again.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.stores import KINDS

ROOT: Final = Path(__file__).parent.parent.parent
PROGRESS: Final = ROOT / "var" / "campaign"
MAX_MINUTES: Final = 60


class Part(NamedTuple):
    """A part of the campaign: arguments and environment of pytest, and the number of processes that run its tests."""

    arguments: Sequence[str]
    stores: str = ""
    forks: int = 3
    variables: Mapping[str, str] = {}


PARTS: Final = {
    "histories": Part(["tests/campaign/histories", "tests/campaign/upgrade", "tests/model"]),
    "faults": Part(["tests/campaign/faults", "tests/faults"]),
    "fuzz": Part(["tests/campaign/fuzz", "tests/http", "--deselect", "tests/campaign/fuzz/test_schemathesis.py"]),
    "schemathesis": Part(["tests/campaign/fuzz/test_schemathesis.py"]),
    "browser": Part(["tests/campaign/browser", "tests/console"]),
    "clients": Part(["tests/campaign/clients", "tests/cli", "tests/client", "tests/sqs", "tests/websocket"]),
    "spark": Part(["tests/campaign/spark", "tests/spark"], forks=1),
    "packages": Part(["tests/campaign/packages", "tests/packaging"]),
    "objects": Part(
        ["tests/campaign/objects", "tests/object", "tests/http/test_delay.py", "zq/conformance"],
        stores="s3,swift,swift-3,az",
    ),
    "sharded": Part(["zq/conformance"], stores="mongodb-sharded"),
    "isolated": Part(["zq/conformance"], variables={"ZQ_STORE_PER_TEST": "1"}),
}
"""The parts by name. ``.ci/run`` runs them in turn by the number of commits."""


def main(arguments: Sequence[str]) -> int:
    """Run one part, or all of them in turn; return 1 if a test failed and 2 if the arguments are wrong."""
    options = parsed(arguments)
    parts = [options.part] if options.part else list(PARTS)
    failed = [name for name in parts if not run(name, options)]
    if failed:
        print(f"\nFailed parts: {', '.join(failed)}. Run them again with --seed {options.seed}.", file=sys.stderr)
    return 1 if failed else 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. A wrong value prints an error message and exits with code 2."""
    parser = argparse.ArgumentParser("devstack/campaign", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument(
        "--part", help=f"one of {', '.join(PARTS)}, or a number: the parts take turns (default: all, one after another)"
    )
    parser.add_argument("--minutes", default=str(MAX_MINUTES), help="no test of a part starts later (1 to 60)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="repeats the random choices of a run")
    parser.add_argument("--store", help=f"the only store to test, one of {', '.join(KINDS)} (default: the part's own)")
    options = parser.parse_args(arguments)
    if options.part is not None and options.part.isascii() and options.part.isdigit():
        options.part = list(PARTS)[int(options.part) % len(PARTS)]
    if options.part is not None and options.part not in PARTS:
        refuse(f"--part must be one of {', '.join(PARTS)}, not {options.part}.")
    if options.store is not None and options.store not in KINDS:
        refuse(f"--store must be one of {', '.join(KINDS)}, not {options.store}.")
    options.seed = number("--seed", options.seed, 0, 10**9)
    options.minutes = number("--minutes", options.minutes, 1, MAX_MINUTES)
    return options


def number(option: str, text: str, low: int, high: int) -> int:
    """Return the whole number of an option, or exit."""
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        refuse(f"{option} must be a whole number from {low} to {high}, not {text}.")
    return int(text)


def refuse(sentence: str) -> None:
    """Print the message and exit with code 2."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def run(name: str, options: argparse.Namespace) -> bool:
    """Run a part and return whether all executed tests passed."""
    part, stores = PARTS[name], options.store or PARTS[name].stores
    command = [sys.executable, "-m", "pytest", "-p", "tests.campaign.progress", "--forks", str(part.forks)]
    command += ["--progress", str(PROGRESS / f"{name}-{options.seed}-{stores or 'usual'}")]
    command += ["--until", str(time.time() + 60 * options.minutes)]
    command += ["--stores", stores] if stores else []
    print(f"\n== {name}: --seed {options.seed}, at most {options.minutes} minutes", flush=True)
    chosen = {"ZQ_CAMPAIGN": "1", "ZQ_SEED": str(options.seed)}
    return (
        subprocess.run([*command, *part.arguments], cwd=ROOT, env={**os.environ, **chosen, **part.variables}).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
