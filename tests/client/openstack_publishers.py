# SPDX-License-Identifier: Apache-2.0
"""Ceilometer's publisher and Aodh's notifier, unchanged, before a server that asks Keystone (issue K, "Real parts").

``python -m tests.client.openstack_publishers FOLDER`` makes a virtual environment in the folder, installs both there
(a minute, 400 MB: too large for the suite), has them publish by a session of the tests' Keystone and by a pre-signed
URL, and ends with 0 if zq has all that in the right project.
"""

import subprocess
import sys
import venv
from pathlib import Path
from urllib.parse import urlencode

from tests.keystone import Keystone, User
from tests.servers import ZqServer, ask

PACKAGES = ("ceilometer", "aodh", "python-zaqarclient")
ANN = User("ann", "a11")
# Where each of the three ways leaves what.
EXPECTED = {"meters": "cpu", "alarms": "because", "id-1-t": "because"}
PROGRAM = """
import sys
from urllib.parse import urlparse
import aodh.service
import ceilometer.service
from aodh.notifier.zaqar import ZaqarAlarmNotifier
from ceilometer.publisher.zaqar import ZaqarPublisher
from ceilometer.sample import Sample
from keystoneauth1.loading import get_auth_plugin_conf_options

keystone, zq, signed = sys.argv[1:]
who = {"auth_url": f"{keystone}/v3", "username": "ann", "password": "secret", "project_name": "a11"}
domains = {"user_domain_name": "Default", "project_domain_name": "Default", "auth_type": "password"}

def configured(conf, **options):
    conf.register_opts(get_auth_plugin_conf_options("password"), group="service_credentials")
    for name, value in options.items():
        conf.set_override(name, value, group="service_credentials")
    return conf

conf = configured(ceilometer.service.prepare_service(argv=["x"], config_files=[]), **who, **domains)
sample = Sample("cpu", "cumulative", "ns", 1, "u", "p", "vm-1", "2026-11-23T00:00:00", {"host": "h"})
ZaqarPublisher(conf, urlparse("zaqar://?queue=meters&ttl=600")).publish_samples([sample])

notifier = ZaqarAlarmNotifier(configured(aodh.service.prepare_service(argv=[], config_files=[]), **who))
notifier._zendpoint = zq  # the tests' Keystone has no listing of endpoints
for query in (signed, "topic=t"):
    notifier.notify(urlparse(f"zaqar://?{query}"), "id-1", "name", "low", "ok", "alarm", "because", {"x": 1})
"""


def installed(folder: Path) -> Path:
    """The interpreter of an environment with OpenStack's packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def main(folder: Path) -> int:
    """Publish, and look what came."""
    python = installed(folder)
    with Keystone(ANN) as issuer:
        config = f"{issuer.config()}[signed_url]\nsecret_key = {'k' * 32}\n"
        with ZqServer("memory:", config=config) as server:
            issuer.endpoint = server.url
            headers = {"X-Auth-Token": issuer.token("ann"), "X-Project-ID": ANN.project}
            terms = {"paths": ["messages"], "methods": ["POST"]}
            shared = ask(server.url, "POST", "/v2/queues/alarms/share", terms, headers=headers).document
            lists = {name: ",".join(shared[name]) for name in ("paths", "methods")}
            given = {"queue_name": "alarms", "project_id": shared["project"], **lists}
            signed = urlencode(given | {name: shared[name] for name in ("expires", "signature")})
            subprocess.run([python, "-c", PROGRAM, issuer.url, server.url, signed], check=True)
            for queue, word in EXPECTED.items():
                listed = ask(server.url, "GET", f"/v2/queues/{queue}/messages?echo=true", headers=headers).document
                assert word in str(listed["messages"]), (queue, listed)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
