# SPDX-License-Identifier: Apache-2.0
"""Celery on zq's SQS interface: ``python -m bench.celery_on_sqs``.

``tests/campaign/clients/test_celery.py`` runs it too. Tasks, some with a countdown and some with a retry, are sent to a
worker, which is killed, and then to another one. Each task must be done, and the queue must be empty. The command
prints the tasks that were done, and exits with 1 if that is not so.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

from zq import testing

ACCOUNT = "123456789012"
PATIENCE = 120.0
# Number of tasks that are done before the first worker is killed.
BEFORE = 8
COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
TASKS = """\
import os, time
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"is_secure": False, "region": "us-east-1", "visibility_timeout": 5}
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, worker_enable_remote_control=False)


def note(word):
    with open(os.environ["DONE"], "a") as file:
        file.write(word + "\\n")


@app.task
def plain(number):
    time.sleep(0.02)
    note(f"plain {number}")


@app.task(bind=True)
def retried(self, number):
    if not self.request.retries:
        raise self.retry(countdown=1)
    note(f"retried {number}")


if __name__ == "__main__":
    for number in range(30):
        plain.delay(number)
    for number in range(30, 33):
        plain.apply_async((number,), countdown=3)
    for number in range(3):
        retried.delay(number)
"""
WANTED = {f"plain {number}" for number in range(33)} | {f"retried {number}" for number in range(3)}
WORKER = ("-m", "celery", "-A", "tasks", "worker", "-P", "solo", "-l", "WARNING")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


def main() -> int:
    """Run the benchmark and return 0 if it succeeds."""
    with testing.server(sqs=True) as server, tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        done.touch()
        Path(folder, "tasks.py").write_text(TASKS)
        broker = f"sqs://{ACCOUNT}:any@{urlsplit(server.url).netloc}//"
        env = {**os.environ, "BROKER": broker, "DONE": str(done)}
        subprocess.run([sys.executable, "tasks.py"], cwd=folder, env=env, check=True)
        for enough, how in ((BEFORE, signal.SIGKILL), (len(WANTED), signal.SIGTERM)):
            worker = subprocess.Popen([sys.executable, *WORKER, *QUIET], cwd=folder, env=env)
            until = time.monotonic() + PATIENCE
            while len(words(done)) < enough and time.monotonic() < until:
                time.sleep(0.1)
            if enough == len(WANTED):
                left = emptied(server.url)
            worker.send_signal(how)
            worker.wait()
        print(f"{len(words(done))} of {len(WANTED)} tasks done; in the queue: {left}")
        return int(words(done) != WANTED or any(left.values()))


def words(done: Path) -> set[str]:
    return set(done.read_text().splitlines())


def emptied(url: str) -> dict[str, int]:
    """Wait until the queue is empty, at most for ``PATIENCE``, and return its counts."""
    keys = {"aws_access_key_id": ACCOUNT, "aws_secret_access_key": "any"}
    sqs: Any = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)
    until = time.monotonic() + PATIENCE
    while True:
        told = sqs.get_queue_attributes(QueueUrl="celery", AttributeNames=list(COUNTS))["Attributes"]
        left = {name: int(told[name]) for name in COUNTS}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
