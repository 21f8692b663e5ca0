# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a queue over plain HTTP, with curl if it is installed and otherwise with Python's client."""

import json
import subprocess

import pytest

from tests.abilities import able
from tests.servers import CLIENT, PROJECT, ZqServer, ask


def curl(url: str, method: str, path: str, body: object = None) -> tuple[int, object]:
    """Send a request and return the status and the JSON body, or None if there is no body."""
    if not able("curl"):
        answer = ask(url, method, path, body)
        return answer.status, answer.document
    command = ["curl", "-sS", "-m", "20", "-X", method, "-w", "\n%{http_code}", url + path]
    command += ["-H", f"Client-ID: {CLIENT}", "-H", f"X-Project-ID: {PROJECT}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", json.dumps(body)]
    text, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), json.loads(text) if text else None


@pytest.mark.durable
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_whole_life_by_curl(store_uri: str, engine: str) -> None:
    """The cycle is create, post, list, claim, renew, delete, release, pop, stats, kill -9, purge, delete."""
    with ZqServer(store_uri, engine=engine) as server:
        url, queue = server.url, "/v2/queues/orders"
        assert curl(url, "GET", "/healthz")[0] == curl(url, "GET", "/readyz")[0] == 200
        assert curl(url, "PUT", queue, {"owner": "shop"}) == (201, None)
        assert curl(url, "PUT", queue) == (204, None)
        orders = {"messages": [{"body": {"order": number, "city": "Łódź"}, "ttl": 600} for number in range(6)]}
        status, posted = curl(url, "POST", f"{queue}/messages", orders)
        assert status == 201
        assert len(posted["resources"]) == 6
        status, listed = curl(url, "GET", f"{queue}/messages?echo=true&limit=4")
        assert [message["body"]["order"] for message in listed["messages"]] == [0, 1, 2, 3]
        status, rest = curl(url, "GET", listed["links"][0]["href"])
        assert [message["body"]["order"] for message in rest["messages"]] == [4, 5]

        status, claimed = curl(url, "POST", f"{queue}/claims?limit=2", {"ttl": 90, "grace": 60})
        assert status == 201
        first, second = (message["href"] for message in claimed["messages"])
        claim = f"{queue}/claims/{first.split('=')[-1]}"
        assert curl(url, "PATCH", claim, {"ttl": 120}) == (204, None)
        assert curl(url, "GET", claim)[1]["ttl"] == 120
        assert curl(url, "DELETE", first) == (204, None)
        assert curl(url, "DELETE", second.split("?")[0])[0] == 403
        assert curl(url, "DELETE", claim) == (204, None)
        assert curl(url, "GET", claim)[0] == 404
        status, popped = curl(url, "DELETE", f"{queue}/messages?pop=2")
        assert [message["body"]["order"] for message in popped["messages"]] == [1, 2]
        server.kill()
        server.start()
        assert curl(url, "GET", queue)[1]["owner"] == "shop"
        assert curl(url, "GET", f"{queue}/stats")[1]["messages"]["free"] == 3
        assert curl(url, "POST", f"{queue}/purge") == (204, None)
        assert curl(url, "GET", f"{queue}/stats")[1]["messages"] == {"claimed": 0, "free": 0, "total": 0}
        assert curl(url, "DELETE", queue) == (204, None)
        assert curl(url, "GET", "/v2/queues")[1]["queues"] == []
