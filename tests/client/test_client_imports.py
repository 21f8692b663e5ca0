# SPDX-License-Identifier: Apache-2.0
"""The Python client can live where no server is installed."""

import subprocess
import sys

SERVERS = "falcon gunicorn granian pymongo redis rocksdict oslo_config prometheus_client jsonschema"


def test_the_client_imports_nothing_of_the_server() -> None:
    """Neither its libraries nor its modules, and all that it offers is there."""
    code = (
        "import sys, zq.client\n"
        "assert all(hasattr(zq.client, name) for name in zq.client.__all__)\n"
        f"print(*(set({SERVERS.split()}) | {{'zq.broker', 'zq.http', 'zq.storage', 'zq.settings'}}) & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
