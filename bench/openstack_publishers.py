# SPDX-License-Identifier: Apache-2.0
"""Ceilometer and Aodh, unmodified, publish to zq with a stub Keystone.

zq must store each message once, in the project of its credential, and none that must be refused.

The packages are large, so they have their own environment, and this is not part of the test suite:

    python3.11 -m venv /tmp/publishers && /tmp/publishers/bin/pip install ceilometer==27.0.0 aodh==23.0.0
    python -m bench.openstack_publishers /tmp/publishers/bin/python

Each line of the output is a way of publishing and its result; the exit code is 1 if one of them fails. Aodh logs a
failed post and continues, so only the messages in zq count.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.keystone import Keystone, User
from tests.servers import ZqServer, ask, wait_for
from tests.sink import CONFIG, Sink
from tests.stores import Stores

METERING, ALARMS = User("ceilometer", "c31"), User("aodh", "a0d")
OWNER, STRANGER = User("ann", "a11"), User("bob", "b0b")

# The service's configuration for oslo.config.
CREDENTIALS = """\
[service_credentials]
auth_type = password
auth_url = {url}/v3
username = {user.name}
password = {user.password}
project_name = {user.project}
user_domain_name = Default
project_domain_name = Default
region_name = one
"""
CEILOMETER = """\
import sys
from ceilometer import sample, service
from ceilometer.event import models
from ceilometer.publisher import zaqar
from oslo_utils import netutils, timeutils

conf = service.prepare_service([], [sys.argv[1]])
publisher = zaqar.ZaqarPublisher(conf, netutils.urlsplit("zaqar://?queue=meters&ttl=600"))
now = timeutils.utcnow()
cpu = sample.Sample("cpu", "gauge", "ns", 7, "u1", "p1", "vm1", now.isoformat(), {"a": "\\u00e9"})
publisher.publish_samples([cpu, cpu])
trait = models.Trait("host", models.Trait.TEXT_TYPE, "one")
publisher.publish_events([models.Event("m1", "compute.started", now, [trait], {})])
"""
AODH = """\
import sys
from aodh import service
from aodh.notifier import zaqar
from oslo_utils import netutils

conf = service.prepare_service(argv=[], config_files=[sys.argv[1]])
for kind, action in zip(sys.argv[2::2], sys.argv[3::2]):
    notifier = getattr(zaqar, kind)(conf)
    notifier.notify(netutils.urlsplit(action), "alarm1", "hot", "low", "ok", "alarm", "77 degrees", {"most": 77})
"""


def run(python: str, program: str, user: User, keystone: Keystone, *arguments: str) -> str:
    """Return the output of a program in the other environment, with its exit code if that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "service.conf")
        config.write_text(CREDENTIALS.format(url=keystone.url, user=user))
        command = [python, "-P", "-W", "ignore", "-c", program, str(config), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr + (f"exit code {done.returncode}\n" if done.returncode else "")


def held(server: ZqServer, keystone: Keystone, user: User) -> dict[str, list[Any]]:
    """Return the bodies in each queue of a user's project."""
    headers = {"X-Project-ID": user.project, "X-Auth-Token": keystone.token(user.name)}
    listed = ask(server.url, "GET", "/v2/queues?limit=20", headers=headers).document["queues"]
    paths = {each["name"]: f"/v2/queues/{each['name']}/messages?echo=true&limit=20" for each in listed}
    found = {name: ask(server.url, "GET", path, headers=headers).document for name, path in paths.items()}
    return {name: [message["body"] for message in page["messages"]] for name, page in found.items()}


def signed(server: ZqServer, keystone: Keystone, queue: str, methods: list[str]) -> str:
    """Return an action of Aodh with the owner's signature for this queue."""
    headers = {"X-Project-ID": OWNER.project, "X-Auth-Token": keystone.token(OWNER.name)}
    terms = {"paths": ["messages"], "methods": methods}
    answer = ask(server.url, "POST", f"/v2/queues/{queue}/share", terms, headers=headers)
    assert answer.status == 200, answer
    share: Mapping[str, Any] = answer.document
    told = {name: ",".join(share[name]) for name in ("paths", "methods")}
    whole = {"queue_name": queue, "project_id": share["project"], **told}
    return f"zaqar://?{urlencode(whole | {name: share[name] for name in ('signature', 'expires')})}"


def attempts(server: ZqServer, keystone: Keystone) -> list[tuple[str, str, User, str, list[str]]]:
    """Return each way of publishing: its name, the program, its user, the target queue, and the arguments."""
    plain, trusted = "ZaqarAlarmNotifier", "TrustZaqarAlarmNotifier"
    action = signed(server, keystone, "signed", ["GET", "POST"])
    return [
        ("Ceilometer's samples and event", CEILOMETER, METERING, "meters", []),
        ("Aodh's alarm to a topic", AODH, ALARMS, "alarm1-heat", [plain, "zaqar://?topic=heat"]),
        ("Aodh's alarm by a signed URL", AODH, ALARMS, "signed", [plain, action]),
        (
            "Aodh's alarm by a trust",
            AODH,
            ALARMS,
            "trusted",
            [trusted, f"trust+zaqar://{OWNER.name}:delete@?queue_name=trusted"],
        ),
    ]


def refusals(server: ZqServer, keystone: Keystone) -> list[tuple[str, str, str]]:
    """Return requests that must fail: name, action, and the error that Aodh logs."""
    action = signed(server, keystone, "signed", ["GET", "POST"])
    return [
        ("Signed for reading", signed(server, keystone, "signed", ["GET"]), "ResourceNotFound"),
        ("Signed for another queue", action.replace("queue_name=signed", "queue_name=other"), "ResourceNotFound"),
        ("Another project", action.replace(f"={OWNER.project}", f"={STRANGER.project}"), "ResourceNotFound"),
        ("A changed end", action.replace("expires=20", "expires=21"), "ResourceNotFound"),
        (
            "A subscriber in a forbidden place",
            "zaqar://?topic=hook&subscriber=http%3A//10.0.0.1/hook",
            "MalformedRequest",
        ),
    ]


def subscribed(python: str, keystone: Keystone) -> str:
    """Return the notifications of two alarms that a subscriber in an action's URL receives.

    Confirmation is off: otherwise Aodh, which does not handle status 409, would post nothing once there is a
    subscriber.
    """
    with Sink() as sink:
        action = f"zaqar://?topic=told&subscriber={sink.url}/hook"
        said = "".join(run(python, AODH, ALARMS, keystone, "ZaqarAlarmNotifier", action) for _ in range(2))
        try:
            wait_for(lambda: len(sink.bodies("/hook")) == 2, 20, "both alarms")
        except AssertionError as failure:
            return f"NOTHING: {failure}\n{said}"
        return json.dumps(sink.bodies("/hook"))


EXPECTED: dict[User, dict[str, int]] = {
    METERING: {"meters": 3},
    ALARMS: {"alarm1-heat": 1, "alarm1-hook": 0, "alarm1-told": 2},
    OWNER: {"signed": 1, "trusted": 1},
    STRANGER: {},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=os.path.abspath, help="of the environment that has ceilometer and aodh")
    parser.add_argument("--engine", default="gunicorn")
    parser.add_argument("--store", default="rocksdb", choices=["rocksdb", "redis", "mongodb"])
    options = parser.parse_args()
    with Keystone(*EXPECTED) as keystone, closing(Stores()) as stores, tempfile.TemporaryDirectory() as folder:
        config = f"{keystone.config()}{CONFIG}require_confirmation = false\n"
        uri = stores.empty(options.store, Path(folder), "a")
        with ZqServer(uri, engine=options.engine, config=config) as server:
            keystone.endpoint = server.url
            failed = False
            for name, program, user, queue, arguments in attempts(server, keystone):
                said = run(options.python, program, user, keystone, *arguments)
                there = [body for owner in EXPECTED for body in held(server, keystone, owner).get(queue, ())]
                print(f"{name}: {json.dumps(there)[:70]}" if there else f"{name}: NOTHING\n{said}")
            for name, action, error in refusals(server, keystone):
                said = run(options.python, AODH, ALARMS, keystone, "ZaqarAlarmNotifier", action)
                failed |= error not in said
                print(f"{name}: {f'not {error}: {said}' if error not in said else f'refused, {error}'}")
            told = subscribed(options.python, keystone)
            failed |= told.startswith("NOTHING")
            print(f"Aodh's alarm to a subscriber: {told[:200]}")
            found = {user: held(server, keystone, user) for user in EXPECTED}
    counts = {user: {name: len(bodies) for name, bodies in queues.items()} for user, queues in found.items()}
    for user, queues in counts.items():
        print(f"{user.project}: {queues}{'' if queues == EXPECTED[user] else f', not {EXPECTED[user]}'}")
    return int(failed or counts != EXPECTED)


if __name__ == "__main__":
    raise SystemExit(main())
