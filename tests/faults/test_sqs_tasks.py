# SPDX-License-Identifier: Apache-2.0
"""Message move tasks: another server continues the task of a killed server (SQS contract 10)."""

from typing import Any

from tests.faults.test_sqs import client_of
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer
from zq.sqs.move_tasks import LEASE

CONFIG = "[sqs]\nenabled = true\nauth = none\n"
MESSAGES = 40


def test_another_server_goes_on_with_a_task(store: RedisServer) -> None:
    """Each message moves once."""
    with ZqServer(store.uri, config=CONFIG) as first:
        sqs = client_of(first.url)
        dead, jobs, arns = _queues(sqs)
        for start in range(0, MESSAGES, 10):
            entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(start, start + 10)]
            assert "Failed" not in sqs.send_message_batch(QueueUrl=dead, Entries=entries)
        terms = {"SourceArn": arns[dead], "DestinationArn": arns[jobs], "MaxNumberOfMessagesPerSecond": 10}
        sqs.start_message_move_task(**terms)
        wait_for(lambda: _task(sqs, arns[dead])["ApproximateNumberOfMessagesMoved"] > 0, 60, "A first step is made.")
        first.kill()
    with ZqServer(store.uri, config=CONFIG) as other:
        sqs = client_of(other.url)
        wait_for(lambda: _task(sqs, arns[dead])["Status"] == "COMPLETED", LEASE + 120, "The other server goes on.")
        found: list[str] = []
        while taken := sqs.receive_message(QueueUrl=jobs, MaxNumberOfMessages=10).get("Messages"):
            found += [message["Body"] for message in taken]
        assert sorted(map(int, found)) == list(range(MESSAGES))


def _queues(sqs: Any) -> tuple[str, str, dict[str, str]]:
    """Return the URLs of a dead-letter queue and of its source queue, and the ARNs of both."""
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("dead", "jobs")]
    arns = {
        url: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for url in urls
    }
    policy = f'{{"deadLetterTargetArn": "{arns[urls[0]]}", "maxReceiveCount": 3}}'
    sqs.set_queue_attributes(QueueUrl=urls[1], Attributes={"RedrivePolicy": policy})
    return urls[0], urls[1], arns


def _task(sqs: Any, source: str) -> dict[str, Any]:
    (task,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    return dict(task)
