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
from zq.limits import DEFAULT_PAGE, MAX_CLAIMS, MAX_IDS, MAX_WORK_PAGE, Limits
from zq.model import State


def messages(limits: Limits) -> Json:
    """Return the operations of messages and history by path and method."""
    return _all_messages(limits) | _one_message() | _history(limits)


def _listing(limits: Limits) -> list[Json]:
    page = limits.max_messages_per_page
    return [
        several(
            "ids",
            "Get these, wherever they are; then wait is refused and the rest but detailed and bodies ignored.",
            maxItems=MAX_IDS,
        ),
        query(
            "marker",
            TEXT,
            "List messages after this one, as the link to the next page has it, or after the one of this id.",
        ),
        query("limit", integer(1, page, default=DEFAULT_PAGE), "Messages in the page."),
        query(
            "state",
            {"enum": list(State)},
            "List messages of this state alone, whoever posted them, ready and delayed ones in the order of claims, "
            "claimed ones in sequence. Only marker, limit, bodies and detailed go with it.",
        ),
        flag("echo", "List the caller's own messages too."),
        flag("include_claimed", "List claimed messages too."),
        flag("include_delayed", "List delayed messages too; always on a queue without a default delay."),
        BODIES,
        DETAILED,
        wait(limits),
    ]


def _removal(limits: Limits) -> list[Json]:
    most, page = limits.max_messages_per_claim_or_pop, limits.max_messages_per_page
    return [
        several("ids", "Delete these, claimed or not. Exactly one of ids and pop must be given.", maxItems=page),
        query("pop", integer(1, most), "Remove and return up to so many ready messages."),
        several("claim_ids", "Where the server asks for it: the claims that hold the ids."),
        DETAILED,
        wait(limits),
    ]


def _all_messages(limits: Limits) -> Json:
    stage = query("stage", FREE_NAMES, "Keep the messages there, unseen, until a commit publishes them.")
    posted = {
        201: answer("Posted.", "PostedHrefs", "Location", "Idempotency-Replayed", "Warning"),
        202: answer("Staged.", "Staged", "Idempotency-Replayed", "Warning"),
    }
    removed = {
        200: answer("What was popped.", "PoppedMessages", "Retry-After"),
        204: answer("What ids named is not there now."),
    }
    return {
        f"{QUEUE}/messages": {
            "get": operation(
                "list_messages",
                "List messages, or get some by their ids",
                {200: answer("A page; no links if ids were given.", "MessagePage", "Retry-After")},
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
                "remove_messages", "Delete messages by their ids, or pop", removed, parameters=_removal(limits)
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
                {200: answer("It.", "Message")},
                parameters=[BODIES, DETAILED],
                errors=[404],
            ),
            "delete": operation(
                "delete_message", "Delete a message", {204: answer("It is not there now.")}, parameters=[claim]
            ),
        },
        "/v2/messages/{message}": {
            "get": operation(
                "find_message",
                "Where in the project a message is, or its latest record",
                {200: answer("Its queue, its state, and it.", "Located")},
                parameters=[BODIES, DETAILED],
                errors=[404],
            )
        },
    }


def _history(limits: Limits) -> Json:
    moment = TEXT | {"format": "date-time"}
    parameters = [
        query("state", {"enum": ["all"]}, "Living messages too, in the order of sequence."),
        query("since", moment, "What finished at this moment or later. Not with state."),
        query("until", moment, "What finished before this moment. Not with state."),
        query("marker", TEXT | {"pattern": "^[0-9]+$"}, "Continue after this position."),
        query("limit", integer(1, limits.max_messages_per_page, default=DEFAULT_PAGE), "Messages in the page."),
        BODIES,
        DETAILED,
    ]
    return {
        f"{QUEUE}/history": {
            "get": operation(
                "list_history", "Finished messages", {200: answer("A page.", "HistoryPage")}, parameters=parameters
            )
        },
        f"{QUEUE}/history/replay": {
            "post": operation(
                "replay_history",
                "Post copies of finished messages",
                {200: answer("How many, or would be.", "ReplayAnswer")},
                body=body("ReplayTerms", required=True),
                errors=[404, 409],
            )
        },
        f"{QUEUE}/redrive": {
            "post": operation(
                "redrive_queue",
                "Move dead letters back to where they came from, or elsewhere",
                {200: answer("How many, or would be.", "RedriveAnswer")},
                body=body("RedriveTerms", required=False),
                errors=[409],
            )
        },
    }


# Pattern of a marker of claims.
MARKER: Final = "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2,3})?$"
# The path of a claim.
CLAIM: Final = QUEUE + "/claims/{claim}"


def claims(limits: Limits) -> Json:
    """Return the operations of claims by path and method."""
    made = _claiming(limits) | _settling()
    made[CLAIM] |= _one_claim(limits)
    return made


def _claiming(limits: Limits) -> Json:
    """Return the operations that create claims, POST and PUT, by path."""
    many = query("limit", integer(1, limits.max_messages_per_claim_or_pop, default=DEFAULT_PAGE), "Messages to claim.")
    parameters, terms = [many, DETAILED, wait(limits)], body("ClaimTerms", required=False)
    claimed = {
        201: answer("Claimed.", "Messages", "Location"),
        204: answer("There is nothing to claim, or claims are paused.", "", "Retry-After"),
    }
    there = {200: answer("The claim lives; nothing was changed.", "Messages", "Location")}
    named = in_path("claim", CLAIM_NAMES, "A name with a dot.")
    return {
        "/v2/claims": {"get": _claim_listing("list_project_claims", "Live claims of all queues")},
        f"{QUEUE}/claims": {
            "get": _claim_listing("list_claims", "Live claims of a queue"),
            "post": operation("claim_messages", "Claim messages", claimed, parameters=parameters, body=terms),
        },
        CLAIM: {
            "put": operation(
                "claim_messages_by_name",
                "Claim messages under a name of the caller's choice, or get what it holds",
                claimed | there,
                parameters=[named, *parameters, FENCE],
                body=terms,
                errors=[409],
            )
        },
    }


def _claim_listing(identity: str, summary: str) -> Json:
    parameters = [
        query("marker", TEXT | {"pattern": MARKER}, "Continue after this page, as its link has it."),
        query("limit", integer(1, MAX_CLAIMS, default=DEFAULT_PAGE), "Claims in the page, which may have fewer."),
    ]
    return operation(identity, summary, {200: answer("A page.", "ClaimPage")}, parameters=parameters)


def _one_claim(limits: Limits) -> Json:
    return {
        "get": operation(
            "get_claim", "Get a claim", {200: answer("It.", "Claim")}, parameters=[BODIES, DETAILED], errors=[404]
        ),
        "patch": operation(
            "renew_claim",
            "Start a claim anew",
            {204: answer("Renewed.")},
            parameters=[FENCE],
            body=body("RenewalTerms", required=True),
            errors=[404, 409],
        ),
        "delete": operation(
            "release_claim",
            "Give back what a claim holds",
            {204: answer("The claim is not there now.")},
            parameters=[query("delay", delays(limits), "Seconds until the messages are ready again.")],
        ),
    }


def _settling() -> Json:
    return {
        f"{CLAIM}/settle": {
            "post": operation(
                "settle_claim",
                "Delete, release, move and bury messages of a claim",
                {200: answer("What was done.", "Settled", "Idempotency-Replayed")},
                parameters=[KEY, FENCE],
                body=body("SettleTerms", required=True),
                errors=[404, 409, 422],
            )
        }
    }


def transactions() -> Json:
    """Return the operations of fences, stages and commits by path and method."""
    made = {
        "/v2/fences/{name}": {
            "post": operation("advance_fence", "Begin a new epoch", {200: answer("The epoch.", "Epoch")}),
        },
        "/v2/stages/{name}": {
            "delete": operation("drop_stage", "Drop staged messages", {204: answer("Nothing is staged there now.")}),
        },
        "/v2/commits": {
            "post": operation(
                "commit",
                "Publish stages and settle claims as one decision",
                {
                    200: answer("What was done.", "Committed"),
                    202: answer("It is decided and being carried out: ask again.", "Committed", "Retry-After"),
                },
                parameters=[FENCE],
                body=body("CommitTerms", required=True),
                errors=[404, 409, 413],
            )
        },
        "/v2/commits/{producer}": {
            "get": operation(
                "get_commit",
                "A producer's last commit",
                {
                    200: answer("It.", "LastCommit"),
                    202: answer("It, which is still being carried out.", "LastCommit", "Retry-After"),
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
        {200: answer("A page, in the order of names.", page)},
        parameters=[
            query("marker", TEXT, "List names after this one, or where the page before has ended."),
            query("limit", integer(1, MAX_WORK_PAGE, default=DEFAULT_PAGE), "Most of the page."),
        ],
    )
