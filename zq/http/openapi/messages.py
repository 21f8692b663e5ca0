# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations of messages, history, claims and batch jobs (fences, stages, commits)."""

from typing import Final

from zq.http.openapi.operations import (
    BODIES,
    CLAIM_NAMES,
    DETAILED,
    FENCE,
    FREE_NAMES,
    KEY,
    QUEUE,
    TEXT,
    Json,
    answer,
    body,
    delays,
    flag,
    in_path,
    integer,
    operation,
    query,
    several,
    wait,
)
from zq.model import State
from zq.model.limits import DEFAULT_PAGE, MAX_CLAIMS, MAX_IDS, MAX_WORK_PAGE, Limits


def messages(limits: Limits) -> Json:
    """Return the OpenAPI operations of messages and history, by path and method."""
    return _all_messages(limits) | _one_message() | _history(limits)


def _listing(limits: Limits) -> list[Json]:
    page = limits.max_messages_per_page
    return [
        several(
            "ids",
            "Ids of messages in any state. Cannot be combined with wait. Other parameters except detailed and bodies "
            "are ignored.",
            maxItems=MAX_IDS,
        ),
        query("marker", TEXT, "List messages after this marker of a link, or after the message with this id."),
        query("limit", integer(1, page, default=DEFAULT_PAGE), "Maximum number of messages."),
        query(
            "state",
            {"enum": list(State)},
            "List only messages in this state, including the caller's own: ready and delayed ones in the order of "
            "claims, claimed ones by sequence. Only marker, limit, bodies and detailed can be combined with it.",
        ),
        flag("echo", "Include the caller's own messages."),
        flag("include_claimed", "Include claimed messages."),
        flag("include_delayed", "Include delayed messages. Always true for a queue without a default delay."),
        BODIES,
        DETAILED,
        wait(limits),
    ]


def _removal(limits: Limits) -> list[Json]:
    max_messages, page = limits.max_messages_per_claim_or_pop, limits.max_messages_per_page
    return [
        several(
            "ids",
            "Ids of messages to delete, even if they are claimed. Exactly one of ids and pop is required.",
            maxItems=page,
        ),
        query("pop", integer(1, max_messages), "Maximum number of ready messages to delete and return."),
        several("claim_ids", "Claims that hold the messages, if the server requires them."),
        DETAILED,
        wait(limits),
    ]


def _all_messages(limits: Limits) -> Json:
    stage = query("stage", FREE_NAMES, "Store the messages in this stage, invisible until a commit publishes them.")
    posted = {
        201: answer("Posted.", "PostedHrefs", "Location", "Idempotency-Replayed", "Warning"),
        202: answer("Staged.", "StageResult", "Idempotency-Replayed", "Warning"),
    }
    removed: dict[int, Json | str] = {
        200: answer("The popped messages.", "PoppedMessages", "Retry-After"),
        204: "",
    }
    return {
        f"{QUEUE}/messages": {
            "get": operation(
                "list_messages",
                "List messages, or get messages by id",
                {200: answer("A page of messages; without links for ids.", "MessagePage", "Retry-After")},
                parameters=_listing(limits),
                errors=[404],
            ),
            "post": operation(
                "post_messages",
                "Post messages",
                posted,
                parameters=[KEY, stage],
                body=body("Post", required=True),
                errors=[409, 422],
            ),
            "delete": operation(
                "remove_messages", "Delete messages by id, or pop messages", removed, parameters=_removal(limits)
            ),
        }
    }


def _one_message() -> Json:
    claim = query("claim_id", TEXT, "The claim that holds the message.")
    return {
        QUEUE + "/messages/{message}": {
            "get": operation(
                "get_message",
                "Get a message",
                {200: "Message"},
                parameters=[BODIES, DETAILED],
                errors=[404],
            ),
            "delete": operation("delete_message", "Delete a message", {204: ""}, parameters=[claim]),
        },
        "/v2/messages/{message}": {
            "get": operation(
                "find_message",
                "Find a message in the project, or its latest history entry",
                {200: "LocatedMessage"},
                parameters=[BODIES, DETAILED],
                errors=[404],
            )
        },
    }


def _history(limits: Limits) -> Json:
    moment = TEXT | {"format": "date-time"}
    parameters = [
        query("state", {"enum": ["all"]}, "Include live messages, ordered by sequence."),
        query("since", moment, "Earliest finish time. Cannot be combined with state."),
        query("until", moment, "Latest finish time (exclusive). Cannot be combined with state."),
        query(
            "order",
            {"enum": ["asc", "desc"], "default": "asc"},
            "Order of finish times. desc cannot be combined with state.",
        ),
        query("marker", TEXT | {"pattern": "^[0-9]+$"}, "Continue after this position."),
        query("limit", integer(1, limits.max_messages_per_page, default=DEFAULT_PAGE), "Maximum number of messages."),
        BODIES,
        DETAILED,
    ]
    return {
        f"{QUEUE}/history": {
            "get": operation("list_history", "List finished messages", {200: "HistoryPage"}, parameters=parameters)
        },
        f"{QUEUE}/history/replay": {
            "post": operation(
                "replay_history",
                "Post copies of finished messages",
                {200: "ReplayAnswer"},
                body=body("ReplayTerms", required=True),
                errors=[404, 409],
            )
        },
        f"{QUEUE}/redrive": {
            "post": operation(
                "redrive_queue",
                "Move dead letters back to their origin queues, or to another queue",
                {200: "RedriveAnswer"},
                body=body("RedriveTerms", required=False),
                errors=[409],
            )
        },
    }


# Pattern of claim markers.
MARKER: Final = "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2,3})?$"
# The path of a claim.
CLAIM: Final = QUEUE + "/claims/{claim}"


def claims(limits: Limits) -> Json:
    """Return the OpenAPI operations of claims, by path and method."""
    made = _claiming(limits) | _settling()
    made[CLAIM] |= _one_claim(limits)
    return made


def _claiming(limits: Limits) -> Json:
    many = query(
        "limit",
        integer(1, limits.max_messages_per_claim_or_pop, default=DEFAULT_PAGE),
        "Maximum number of messages to claim.",
    )
    parameters, terms = [many, DETAILED, wait(limits)], body("ClaimTerms", required=False)
    claimed = {
        201: answer("Claimed.", "Messages", "Location"),
        204: answer("No message is ready, or claims are paused.", "", "Retry-After"),
    }
    there = {200: answer("The live claim of this name, unchanged.", "Messages", "Location")}
    named = in_path("claim", CLAIM_NAMES, "Name of the claim, which must contain a dot.")
    return {
        "/v2/claims": {"get": _claim_listing("list_project_claims", "List live claims of all queues")},
        f"{QUEUE}/claims": {
            "get": _claim_listing("list_claims", "List live claims of a queue"),
            "post": operation("claim_messages", "Claim messages", claimed, parameters=parameters, body=terms),
        },
        CLAIM: {
            "put": operation(
                "claim_messages_by_name",
                "Create a named claim, or get the live claim of this name",
                claimed | there,
                parameters=[named, *parameters, FENCE],
                body=terms,
                errors=[409],
            )
        },
    }


def _claim_listing(identity: str, summary: str) -> Json:
    parameters = [
        query("marker", TEXT | {"pattern": MARKER}, "Marker of the page, from the link in the previous page."),
        query(
            "limit", integer(1, MAX_CLAIMS, default=DEFAULT_PAGE), "Maximum number of claims; a page may have fewer."
        ),
    ]
    return operation(identity, summary, {200: "ClaimPage"}, parameters=parameters)


def _one_claim(limits: Limits) -> Json:
    return {
        "get": operation("get_claim", "Get a claim", {200: "Claim"}, parameters=[BODIES, DETAILED], errors=[404]),
        "patch": operation(
            "renew_claim",
            "Renew a claim",
            {204: ""},
            parameters=[FENCE],
            body=body("RenewalTerms", required=True),
            errors=[404, 409],
        ),
        "delete": operation(
            "release_claim",
            "Release the messages of a claim",
            {204: ""},
            parameters=[query("delay", delays(limits), "Seconds until the messages can be claimed again.")],
        ),
    }


def _settling() -> Json:
    return {
        f"{CLAIM}/settle": {
            "post": operation(
                "settle_claim",
                "Delete, release, move and bury messages of a claim",
                {200: answer("The result.", "Settled", "Idempotency-Replayed")},
                parameters=[KEY, FENCE],
                body=body("SettleTerms", required=True),
                errors=[404, 409, 422],
            )
        }
    }


def transactions() -> Json:
    """Return the OpenAPI operations of fences, stages and commits, by path and method."""
    made = {
        "/v2/fences/{name}": {
            "post": operation("advance_fence", "Advance a fence", {200: "Epoch"}),
        },
        "/v2/stages/{name}": {
            "delete": operation("drop_stage", "Drop a stage", {204: ""}),
        },
        "/v2/commits": {
            "post": operation(
                "commit",
                "Publish stages and settle claims atomically",
                {
                    200: "CommitResult",
                    202: answer("The commit is still running; retry.", "CommitResult", "Retry-After"),
                },
                parameters=[FENCE],
                body=body("CommitTerms", required=True),
                errors=[404, 409, 413],
            )
        },
        "/v2/commits/{producer}": {
            "get": operation(
                "get_commit",
                "Get a producer's last commit",
                {
                    200: "LastCommit",
                    202: answer("The last commit, which is still running.", "LastCommit", "Retry-After"),
                },
                errors=[404],
            ),
        },
    }
    for listed, page in (("fences", "FencePage"), ("stages", "StagePage"), ("commits", "CommitPage")):
        made.setdefault(f"/v2/{listed}", {})["get"] = _listed_work(listed, page)
    return made


def _listed_work(listed: str, page: str) -> Json:
    return operation(
        f"list_{listed}",
        f"List {listed}, the last one of each producer" if listed == "commits" else f"List {listed}",
        {200: page},
        parameters=[
            query("marker", TEXT, "List names after this one, or after the marker of a link."),
            query("limit", integer(1, MAX_WORK_PAGE, default=DEFAULT_PAGE), "Maximum number of entries."),
        ],
    )
