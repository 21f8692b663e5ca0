# SPDX-License-Identifier: Apache-2.0
"""A walk of boto3 over all operations, on every store."""

from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from tests.sqs.walk import Refused, Walk, complete


@pytest.mark.every_store
def test_each_operation_is_done_and_refused(sqs: Any) -> None:
    """The error codes are those of AWS; ``tests/campaign/packages`` runs the walk with the command line."""

    def ask(operation: str, **given: Any) -> dict[str, Any]:
        try:
            answer = getattr(sqs, xform_name(operation))(**given)
        except ClientError as error:
            raise Refused(error.response["Error"]["Code"]) from error
        return {name: value for name, value in answer.items() if name != "ResponseMetadata"}

    walk = Walk(ask)
    walk.make()
    complete(walk)
