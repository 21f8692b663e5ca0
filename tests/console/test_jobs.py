# SPDX-License-Identifier: Apache-2.0
"""The jobs page: producers, fences and stages, and the deletion of a stage."""

import pytest
from playwright.sync_api import Locator, expect

from tests.console.conftest import Watch, expect_notice
from zq import errors
from zq.client import Client

pytestmark = pytest.mark.slow

JOBS = "jobs"
LARGEST = 9_223_372_036_854_775_807


def row(watch: Watch, table: str, name: str) -> Locator:
    return watch.page.get_by_role("region", name=table).get_by_role("row", name=name)


def cell(found: Locator, column: str) -> Locator:
    return found.locator(f"[data-name='{column}']")


def test_what_a_job_does_is_seen(client: Client, watch: Watch) -> None:
    """The page shows the fence's epoch and the stage, and after the commit the producer's batch and its counts."""
    client.queue("in").post_batch([1, 2, 3])
    page = watch.open(JOBS)
    fence = client.fence("etl")
    expect(cell(row(watch, "Fences", "etl"), "Epoch")).to_have_text("1")
    expect(cell(row(watch, "Fences", "etl"), "Issued")).to_contain_text(" s ago")
    client.queue("out").stage("night", ["one", "two"])
    stage = row(watch, "Stages", "night")
    expect(cell(stage, "Messages")).to_have_text("2")
    expect(cell(stage, "Bytes")).to_have_text("10 B")
    expect(cell(stage, "Expires in")).to_contain_text(" min")
    client.queue("in").claim(name="etl.1", limit=3, fence=fence)
    client.commit("etl", LARGEST, publish=[("night", 2)], settle=[("in", "etl.1")], fence=fence)
    producer = row(watch, "Producers", "etl")
    expect(cell(producer, "Last batch")).to_have_text(str(LARGEST))
    expect(cell(producer, "Published")).to_have_text("2")
    expect(cell(producer, "Deleted")).to_have_text("3")
    expect(cell(producer, "State")).to_have_text("done")
    expect(cell(producer, "Committed")).to_have_attribute("title", client_moment(client))
    expect(page.get_by_text("No stages")).to_be_visible()


def client_moment(client: Client) -> str:
    """Return the time of the producer's commit in the page's format."""
    [commit] = [found for found in client.commits() if found.producer == "etl"]
    return str(commit.decided).replace("T", " ").replace("Z", " UTC")


def test_a_small_stage_is_dropped(client: Client, watch: Watch) -> None:
    """The dialog gives the stage's message count; Escape cancels; a commit of the deleted stage is rejected."""
    client.queue("out").stage("small", [1, 2])
    client.queue("out").stage("stays", [1])
    page = watch.open(JOBS)
    drop = page.get_by_role("button", name="Delete small…")
    drop.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The stage and its messages (2) are deleted.")
    watch.check_accessible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(drop).to_be_focused()
    drop.click()
    dialog.get_by_role("button", name="Delete").click()
    expect(row(watch, "Stages", "small")).to_have_count(0)
    expect_notice(page, "The stage was deleted.")
    assert [stage.name for stage in client.stages()] == ["stays"]
    with pytest.raises(errors.StageNotFound):
        client.commit("small", 1, publish=[("small", 1)])
    client.drop_stage("stays")
