# SPDX-License-Identifier: Apache-2.0
"""Callers that are believed: no signature is looked at (``[sqs] auth = none``)."""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import falcon

from zq.broker.accounts import ACCOUNT
from zq.http.sqs.call import Authenticate, Who
from zq.model.sqs import SqsOptions

# What an access key is said to be for, in a header or in a query: its id, a date, a region.
CREDENTIAL: Final = re.compile(r"Credential=([^/,\s&]{1,128})(?:/[0-9]{8}/([a-z0-9-]{1,64})/)?", re.ASCII)
# The parameter by which the oldest clients name their key.
OLD_KEY: Final = re.compile(r"AWSAccessKeyId=([0-9]{12})(?:&|$)", re.ASCII)


def believed(options: SqsOptions) -> Authenticate:
    """An access key id that is an account names the project; all others are of the one that the options name."""

    def authenticate(req: falcon.Request) -> Callable[[bytes], Who]:
        said = req.env.get("HTTP_AUTHORIZATION") or unquote(req.query_string)
        found = CREDENTIAL.search(said)
        key, region = (found[1], found[2] or "") if found else ("", "")
        if found is None and (old := OLD_KEY.search(said)):
            key = old[1]
        project = key if ACCOUNT.fullmatch(key) else options.project
        return lambda _body: Who(project, "", region)

    return authenticate
