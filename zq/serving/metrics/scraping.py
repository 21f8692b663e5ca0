# SPDX-License-Identifier: Apache-2.0
"""A client of the metrics listener of a server on this machine."""

from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final

from msgspec import Struct

from zq.errors import Unavailable
from zq.serving.listening import WILDCARD_HOSTS, format_authority
from zq.serving.metrics.token import OPTION, read_token

TIMEOUT: Final = 5.0


class Metrics(Struct, frozen=True):
    """The metrics of a server.

    ``values`` maps the name of each metric, without the prefix ``zq_``, to its value. If a metric has several samples
    with different labels, the value is their maximum.
    """

    version: str
    values: Mapping[str, float]


def scrape(host: str, port: int, token_file: str) -> Metrics:
    """Read the metrics page of a server with the token in the file, if any.

    Raises ``Unavailable`` if no zq server serves the page at this address, or if the server rejects the token.
    """
    # Must be imported after multiprocess.begin in a server, which does not scrape.
    from prometheus_client.parser import text_string_to_metric_families

    host = "127.0.0.1" if host in WILDCARD_HOSTS else host
    where, token = format_authority(host, port), read_token(token_file)
    connection = HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/metrics", headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status == HTTPStatus.UNAUTHORIZED:
            raise Unavailable(f"The server at {where} has read another token from {OPTION}. Send it SIGHUP.")
        text = response.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"No metrics of a server can be read at {where}.") from error
    finally:
        connection.close()
    values: dict[str, float] = {}
    version = ""
    for sample in samples:
        name = sample.name.removeprefix("zq_")
        values[name] = max(values.get(name, sample.value), sample.value)
        version = sample.labels["version"] if name == "info" else version
    if not version:
        raise Unavailable(f"The program at {where} is not a zq server.")
    return Metrics(version, values)
