# SPDX-License-Identifier: Apache-2.0
"""Valid and invalid requests, generated from the OpenAPI document and sent to the application on an open store.

Hypothesis generates them with a seed. The document must describe every response. ``ZQ_FUZZ_STORE`` names the store, by
default ``memory``.
"""

import copy
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from schemathesis import GenerationMode

from tests.features import core_with_subscriptions, figures_of
from tests.http.api import PATCH_TYPE
from tests.http.mutants import FOR_KNOWN, SUBSCRIBER
from tests.http.test_openapi import references
from tests.stores import Stores
from zq.auth.signatures import format_time
from zq.clock import ManualClock
from zq.core.creation import NO_METADATA
from zq.figures.counting import Counts
from zq.figures.feature import FiguresFeature
from zq.http.app import create_app
from zq.http.openapi import OPEN_PATHS, document, resources
from zq.model import ClaimRequest, Commit, Draft, Lease, Move, QueueRef
from zq.model.documents import DocumentRef
from zq.model.identity import SignedUrlOptions
from zq.model.limits import DEFAULT_KEEP, Limits
from zq.model.topics import TOPIC, Entry, TopicRef
from zq.serving.features import command_features
from zq.storage import connect
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.feature import SubscriptionsFeature
from zq.subscriptions.model import Source, Subscription
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer

LIMITS = Limits(max_wait=0, max_messages_post_size=20000)
"""Limits with which no request waits."""
CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]
UNSAID = re.compile(
    "An integer in the body must be|The body must be at most|once|in all|values, not|own queue|nested|maximum_delay"
    "|contains a number out of range|goes with|go with|cannot be combined|Exactly one|Give either|at least one of"
    "|Send either|must not name the queue|has no queue|has no origin"
    "|has no _dead_letter_queue|is not in the claim|after the end of the log|cannot encrypt messages|takes one value"
    "|by the year 9999|only queues can be paused|only queues support|fifo requires|marker must be from 0 to"
    "|sort must be one of in, name|marker must be the marker in the link|marker is not valid for this listing"
    "|attributes must have at most|must be base64"
    "|must be a number from -10|attributes.* must not be empty|must not have control characters"
)
"""Errors that a schema cannot express: rules between members or about stored data, and missing features."""
STORE = os.environ.get("ZQ_FUZZ_STORE", "memory")
NUMBERS = count()
"""Numbers for the names of projects."""
# Paths whose schemas no request can violate.
NOTHING_WRONG = ("/v2/admin/rekey", "/v2/servers")
FREE, HELD, LEASED, NAMED, GONE, DEAD, STAGED = (digit * 32 for digit in "1234567")
CLAIM, NAME, SUBSCRIPTION = "c" * 32, "a.b", "5" * 32
ETL = ["etl", "none"]
PUBLISHED = "1"
"""A message id that Redis never gives to the first message of a topic."""
MESSAGES = [FREE, HELD, LEASED, NAMED, GONE, DEAD, "none", PUBLISHED]
CLAIMS, QUEUES = [CLAIM, NAME], ["jobs", "dead"]
MANY = [*MESSAGES, *(f"unknown-{number}" for number in range(50))]
REAL = {
    "queue": QUEUES,
    "topic": ["news", "none"],
    "to": [*QUEUES, "new"],
    **dict.fromkeys(("message", "ids"), MESSAGES),
    **dict.fromkeys(("id", "delete"), MANY),
    **dict.fromkeys(("claim", "claim_id", "claim_ids"), CLAIMS),
    **dict.fromkeys(("name", "producer", "publish", "stage"), ETL),
    "fence": ["etl:1"],
    "subscription": [SUBSCRIPTION, "none"],
    "subscriber": [SUBSCRIBER, "http://queues.example.org/hook"],
    "expires": [format_time(time.time() + 86400)],
    "X-Project-ID": ["acme"],
}
"""Existing names and ids of the furnished project, by the name of the parameter or member."""
METADATA = b'{"_history_ttl": 600, "_dead_letter_queue": "new", "_max_claim_count": 1, "_redelivery_delay": 5}'


def furnish(storage: Storage, project: str, now: float) -> None:
    """Create one object of every kind in the project."""
    jobs, dead = QueueRef(project, "jobs"), QueueRef(project, "dead")

    def post(queue: QueueRef, message: str) -> None:
        storage.messages.post(queue, [Draft(message, b'{"a": 1}', 600, 0, "c", "MD5:0")], now)

    storage.queues.create(jobs, METADATA)
    storage.queues.create(dead, METADATA)
    post(jobs, GONE)
    storage.messages.delete(jobs, [GONE], now, history=600)
    post(jobs, HELD)
    storage.claims.create(jobs, ClaimRequest(Lease(CLAIM, 60, 60), 1), now)
    for queue, message in ((jobs, LEASED), (dead, NAMED)):
        post(queue, message)
        storage.claims.create(queue, ClaimRequest(Lease(NAME, 60, 60), 1, named=True), now)
    post(jobs, DEAD)
    storage.messages.move(jobs, [Move(DEAD, "dead", reason="it stank")], now, 600)
    post(jobs, FREE)
    storage.transactions.advance_fence(project, "etl", now)
    storage.transactions.stage(project, "etl", jobs, [Draft(STAGED, b"1", 600, 0, "c")], now, 600, 10**6)
    storage.transactions.commit(Commit(project, "etl", 1, [], [], 600), now)
    storage.documents.put(DocumentRef(project, TOPIC, "news"), NO_METADATA, now)
    storage.topics.publish(TopicRef(project, "news"), [Entry(b'{"a": 1}', 600, "MD5:0")], now, DEFAULT_KEEP)
    for source in (Source(project, "queue", "jobs"), Source(project, "topic", "news")):
        one = Subscription(SUBSCRIPTION, SUBSCRIBER, 600, now, {}, confirmed=0)
        subscribe(storage, source, one, now)


def subscribe(storage: Storage, source: Source, one: Subscription, now: float) -> None:
    SubscriptionDocuments(storage, ManualClock(now)).change(source, lambda all: (all.replace(one), None))


def blank(value: Any) -> bool:
    """Return whether the value, or an item of it, counts as absent (contract 1.5), and so violates no schema.

    A comma separates items. A query cannot express an object: the request omits it or sends a string, which may be
    valid.
    """
    if isinstance(value, list):
        return not value or any(map(blank, value))
    return value is None or isinstance(value, dict) or (isinstance(value, str) and not value.strip(","))


def narrowed(value: Any) -> Any:
    """Return a copy of a part of the document that restricts names and ids to values of ``REAL``."""
    if isinstance(value, list):
        return [narrowed(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: narrowed(member) for key, member in value.items()}
    if "schema" in made and made.get("name") in REAL:
        made["schema"] = chosen(made["schema"], REAL[made["name"]])
    for name, schema in made.get("properties", {}).items():
        if name in REAL:
            made["properties"][name] = chosen(schema, REAL[name])
    return made


def chosen(schema: dict[str, Any], values: list[str]) -> dict[str, Any]:
    """Return the schema with its strings restricted to ``values``."""
    if "anyOf" in schema:
        return schema | {"anyOf": [chosen(each, values) for each in schema["anyOf"]]}
    if schema.get("type") == "array":
        return schema | {"items": {"enum": values}}
    return (
        schema
        if "enum" in schema
        else {"enum": [each for each in values if re.search(schema.get("pattern", ""), each)]}
    )


def whole(value: Any) -> Any:
    """Return the value with floats such as 2.0 as integers.

    JSON Schema treats 2.0 as an integer; zq does not (contract 1.6).
    """
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {key: whole(member) for key, member in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sealed(value: Any) -> Any:
    """Return a copy of schemas in which objects allow only the documented members."""
    if isinstance(value, list):
        return [sealed(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: sealed(member) for key, member in value.items()}
    closed = made.get("type") == "object" and "properties" in made and "_history_ttl" not in made["properties"]
    return {"additionalProperties": False} | made if closed else made


def asked(start: object, schemas: dict[str, Any]) -> set[str]:
    """Return the names of the schemas that the parts of the document under ``start`` reference."""
    found = {reference.rsplit("/", 1)[1] for reference in references(start)} & schemas.keys()
    return found.union(*(asked(schemas[name], schemas) for name in found))


def tailored(right: bool) -> Any:
    """Return the document with closed response schemas.

    For valid requests, names and ids are restricted to existing ones.
    """
    made = copy.deepcopy(document(LIMITS))
    parts, paths = made["components"], made["paths"]
    operations = [operation for item in paths.values() for operation in item.values()]
    requests = asked([each["requestBody"] for each in operations if "requestBody" in each], parts["schemas"])
    for name, schema in parts["schemas"].items():
        if name not in requests:
            parts["schemas"][name] = sealed(schema)
        elif right:
            parts["schemas"][name] = sealed(narrowed(schema))
    if right:
        made["paths"], parts["parameters"] = narrowed(paths), narrowed(parts["parameters"])
    else:
        # A query consists of text, so no single value violates the schema of the metadata filters.
        listing = paths["/v2/queues"]["get"]["parameters"]
        listing.remove(next(each for each in listing if each["name"] == "filters"))
        # Contract 1.3: the length is checked only if the request names a queue. Contract 7.2: a delay is checked only
        # on delayed queues.
        del parts["parameters"]["X-Project-ID"]["schema"]["maxLength"]
        parts["schemas"]["Posted"]["properties"]["delay"] = {}
    return schemathesis.openapi.from_dict(made)


def endless(operation: Any) -> bool:
    """Return whether the response ends only when the client disconnects."""
    return bool(operation.path.endswith("/stream"))


schemathesis.serializer.alias(PATCH_TYPE, "application/json")
# Invalid requests for topics' metadata are omitted: the code that refuses them is that of queues.
RIGHT = [
    found.ok()
    for found in tailored(right=True).get_all_operations()
    if not endless(found.ok()) and not found.ok().path.startswith(FOR_KNOWN)
]
WRONG = [
    found.ok()
    for found in tailored(right=False).get_all_operations()
    if found.ok().path not in (*OPEN_PATHS, *resources.topics(LIMITS), *NOTHING_WRONG) and not endless(found.ok())
]


@contextmanager
def opened_store(stores: Stores, folder: Path) -> Iterator[Storage]:
    """Open an empty store for a series of requests."""
    opened = connect(stores.empty(STORE, folder, "c"), {"sync": "never"} if STORE == "rocksdb" else {})
    try:
        yield opened
    finally:
        opened.close()


def ask(store: Storage, operation: Any, mode: GenerationMode, *, examples: int, start: int) -> Counter[tuple[int, str]]:
    """Send generated requests to an operation and check each response. Return the counts by status and description.

    ``start`` seeds the generator. A status of 500 or more fails the test, and so does a response that the document
    does not describe. Each valid request goes to a furnished project of its own.
    """
    checks = CHECKS if mode is GenerationMode.POSITIVE else [*CHECKS, schemathesis.checks.negative_data_rejection]
    clock = ManualClock(store.now())
    share = partial(SignedUrlOptions, secret_key="k" * 32)
    policy = SubscriptionPolicy(sealer=SecretSealer(share))
    broker, use_cases = core_with_subscriptions(store, clock, policy, limits=LIMITS, checksum=True)
    features = [
        FiguresFeature(figures_of(broker, Counts())),
        SubscriptionsFeature(use_cases),
        *command_features(broker),
    ]
    operation.schema.app = app = create_app(broker, share=share, features=features)
    came = Counter[tuple[int, str]]()

    def one(case: Any) -> None:
        # Hypothesis takes words from the code and may send this header: an invalid signature gets 404 everywhere.
        assume(not any(name.lower() == "url-signature" for name in case.headers or {}))
        if (case.headers or {}).get("X-Project-ID") == "acme":
            case.headers["X-Project-ID"] = f"{operation.label}-{next(NUMBERS)}"
            furnish(store, case.headers["X-Project-ID"], clock.now())
        if mode is GenerationMode.POSITIVE:
            case.body = whole(case.body)
        else:
            assume(not any(map(blank, (case.query or {}).values())))
        answer = case.call_and_validate(app=app, checks=checks)
        assert answer.status_code < 500, case.as_curl_command()
        said = answer.json()["description"] if answer.status_code == 400 and answer.content else ""
        came[answer.status_code, said] += 1

    bounded = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        bounded(seed(start)(given(case=operation.as_strategy(generation_mode=mode))(one)))()
    except BaseException as error:
        error.add_note(f"{operation.label}: {examples} {mode.value} requests from seed {start}")
        raise
    return came


def unexpected(came: Counter[tuple[int, str]]) -> list[str]:
    """Return the descriptions of refused valid requests, except errors that a schema cannot express."""
    return [said for status, said in came if status == 400 and not UNSAID.search(said)]
