# SPDX-License-Identifier: Apache-2.0
"""The page of jobs: producers, fences and stages as the server has them, and dropping a stage."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT, ZqServer
from zq import errors
from zq.client import Client

pytestmark = pytest.mark.slow

JOBS = "#/p/acme/jobs"
LARGEST = 9_223_372_036_854_775_807


@pytest.fixture(scope="module")
def server() -> Iterator[ZqServer]:
    """Of this file alone: fences and producers stay."""
    with ZqServer("memory:") as started:
        yield started


def row(watch: Watch, table: str, name: str) -> Locator:
    return watch.page.get_by_role("region", name=table).get_by_role("row", name=name)


def cell(found: Locator, column: str) -> Locator:
    return found.locator(f"[data-name='{column}']")


def test_a_project_without_jobs_is_told_what_would_be_here(server: ZqServer, watching: Watching) -> None:
    watch = watching(server.url)
    page = watch.open("#/p/nobody/jobs")
    for title in ("No job has committed", "There are no fences", "Nothing is staged"):
        expect(page.get_by_text(title, exact=True)).to_be_visible()


def test_what_a_job_does_is_seen(client: Client, watch: Watch) -> None:
    """Its epoch, what it stages, and its commit: the stage is gone then, and the figures of its batch stand there."""
    client.queue("in").post_batch([1, 2, 3])
    page = watch.open(JOBS)
    fence = client.fence("etl")
    expect(cell(row(watch, "Fences", "etl"), "Epoch")).to_have_text("1")
    expect(cell(row(watch, "Fences", "etl"), "Given out")).to_contain_text(" s ago")
    client.queue("out").stage("night", ["one", "two"])
    stage = row(watch, "Stages", "night")
    expect(cell(stage, "Messages")).to_have_text("2")
    expect(cell(stage, "Bytes")).to_have_text("10 B")
    expect(cell(stage, "Dropped in")).to_contain_text(" min")
    client.queue("in").claim(name="etl.1", limit=3, fence=fence)
    client.commit("etl", LARGEST, publish=["night"], settle=[("in", "etl.1")], fence=fence)
    producer = row(watch, "Producers", "etl")
    expect(cell(producer, "Last batch")).to_have_text(str(LARGEST))
    expect(cell(producer, "Published")).to_have_text("2")
    expect(cell(producer, "Deleted")).to_have_text("3")
    expect(cell(producer, "State")).to_have_text("done")
    expect(cell(producer, "Decided")).to_have_attribute("title", client_moment(client))
    expect(page.get_by_text("Nothing is staged")).to_be_visible()


def client_moment(client: Client) -> str:
    """When the batch was decided, as the page writes it."""
    [commit] = [found for found in client.commits() if found.producer == "etl"]
    return str(commit.decided).replace("T", " ").replace("Z", " UTC")


def test_a_small_stage_is_dropped(client: Client, watch: Watch) -> None:
    """The dialog says what goes; Escape leaves all as it is; a commit of it is refused then."""
    client.queue("out").stage("small", [1, 2])
    client.queue("out").stage("stays", [1])
    page = watch.open(JOBS)
    drop = page.get_by_role("button", name="Drop small…")
    drop.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The 2 messages that are staged as small go for good")
    watch.check_accessible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(drop).to_be_focused()
    drop.click()
    dialog.get_by_role("button", name="Drop").click()
    expect(row(watch, "Stages", "small")).to_have_count(0)
    expect(page.locator(".said")).to_contain_text("The stage was dropped.")
    assert [stage.name for stage in client.stages()] == ["stays"]
    with pytest.raises(errors.StageNotFound):
        client.commit("small", 1, publish=["small"])
    client.drop_stage("stays")


def test_the_name_of_a_large_stage_is_typed(client: Client, watch: Watch) -> None:
    """Enter in the empty field does nothing."""
    client.queue("out").stage("large", list(range(21)))
    page = watch.open(JOBS)
    page.get_by_role("button", name="Drop large…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog.get_by_role("button", name="Drop")).to_have_attribute("aria-disabled", "true")
    assert [stage.messages for stage in client.stages()] == [21]
    dialog.get_by_role("textbox").fill("large")
    dialog.get_by_role("textbox").press("Enter")
    expect(row(watch, "Stages", "large")).to_have_count(0)
    assert list(client.stages()) == []


def test_more_than_a_page_is_loaded_when_it_is_asked_for(client: Client, watch: Watch) -> None:
    """Each name once; a page with more to come says so."""
    for number in range(105):
        client.fence(f"many.{number:03}")
    page = watch.open(JOBS)
    fences = page.get_by_role("region", name="Fences").get_by_role("row", name="many.")
    expect(page.get_by_role("button", name="Load more")).to_be_visible()
    assert fences.count() <= 100
    page.get_by_role("button", name="Load more").click()
    expect(fences).to_have_count(105)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)


def test_a_reader_sees_what_it_may_and_drops_nothing(
    tokened: tuple[ZqServer, Callable[..., str]], watching: Watching
) -> None:
    """Names beyond its scope are not there; the button says which rule is missing."""
    server, make = tokened
    with Client(server.url, PROJECT, token=make()) as owner:
        for name in ("mine.1", "other.1"):
            owner.queue("out").stage(name, [1])
            owner.fence(name)
    watch = watching(server.url)
    watch.expected.add(401)
    page = watch.open(JOBS)
    page.get_by_label("Token").fill(make("observe:work/mine.*"))
    page.get_by_role("button", name="Sign in").click()
    drop = page.get_by_role("button", name="Drop mine.1…")
    expect(drop).to_have_attribute("title", "Your credential does not allow messages:delete_all in acme.")
    expect(row(watch, "Fences", "mine.1")).to_be_visible()
    expect(page.get_by_text("other.1")).to_have_count(0)
    drop.press("Enter")
    expect(page.locator(".said")).to_contain_text("does not allow messages:delete_all")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [request for request in watch.requests if request.method == "DELETE"] == []
