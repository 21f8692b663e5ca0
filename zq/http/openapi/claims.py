# SPDX-License-Identifier: Apache-2.0
"""Operations on claims, and of batch jobs: fences, stages, commits."""

from typing import Final

from zq.http.openapi.operations import QUEUE, Json, answer, body, operation
from zq.http.openapi.parameters import CLAIM_NAMES, DETAILED, FENCE, KEY, delays, in_path, integer, query, wait
from zq.limits import DEFAULT_PAGE, Limits

CLAIM: Final = QUEUE + "/claims/{claim}"


def claims(limits: Limits) -> Json:
    """By path and method."""
    made = _claiming(limits) | _settling()
    made[CLAIM] |= _one_claim(limits)
    return made


def _claiming(limits: Limits) -> Json:
    """POST and PUT, by path."""
    many = query("limit", integer(1, limits.max_messages_per_claim_or_pop, default=DEFAULT_PAGE), "Messages to claim.")
    parameters, terms = [many, DETAILED, wait(limits)], body("ClaimTerms", required=False)
    claimed = {
        201: answer("Claimed.", "Messages", "Location"),
        204: answer("There is nothing to claim.", "", "Retry-After"),
    }
    there = {200: answer("The claim lives; nothing was changed.", "Messages", "Location")}
    named = in_path("claim", CLAIM_NAMES, "A name with a dot.")
    return {
        f"{QUEUE}/claims": {
            "post": operation("claim_messages", "Claim messages", claimed, parameters=parameters, body=terms)
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


def _one_claim(limits: Limits) -> Json:
    return {
        "get": operation(
            "get_claim", "Get a claim", {200: answer("It.", "Claim")}, parameters=[DETAILED], errors=[404]
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
    """By path and method."""
    return {
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
