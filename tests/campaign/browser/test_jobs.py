# SPDX-License-Identifier: Apache-2.0
"""The jobs page: without jobs, with a large stage, with more than a page of fences, and for a reader."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Guarded, Watch, Watching
from tests.console.test_jobs import JOBS, row
from zq.client import Client

pytestmark = pytest.mark.slow


def test_a_project_without_jobs_is_told_what_would_be_here(watch: Watch) -> None:
    page = watch.open(JOBS)
    for title in ("No commits", "No fences", "No stages"):
        expect(page.get_by_text(title, exact=True)).to_be_visible()


def test_the_name_of_a_large_stage_is_typed(client: Client, watch: Watch) -> None:
    """The deletion needs the stage's name; Enter in the empty field does nothing."""
    client.queue("out").stage("large", list(range(21)))
    page = watch.open(JOBS)
    page.get_by_role("button", name="Delete large…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog.get_by_role("button", name="Delete")).to_have_attribute("aria-disabled", "true")
    assert [stage.messages for stage in client.stages()] == [21]
    dialog.get_by_role("textbox").fill("large")
    dialog.get_by_role("textbox").press("Enter")
    expect(row(watch, "Stages", "large")).to_have_count(0)
    assert list(client.stages()) == []


def test_more_than_a_page_is_loaded_when_it_is_asked_for(client: Client, watch: Watch) -> None:
    """Each name is listed once, and a button loads the next page."""
    for number in range(105):
        client.fence(f"many.{number:03}")
    page = watch.open(JOBS)
    fences = page.get_by_role("region", name="Fences").get_by_role("row", name="many.")
    expect(page.get_by_role("button", name="Load more")).to_be_visible()
    assert fences.count() <= 100
    page.get_by_role("button", name="Load more").click()
    expect(fences).to_have_count(105)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)


def test_a_reader_sees_what_it_may_and_drops_nothing(tokened: Guarded, watching: Watching) -> None:
    """Names outside the token's scope are hidden, and the button names the missing rule."""
    with tokened.client() as owner:
        for name in ("mine.1", "other.1"):
            owner.queue("out").stage(name, [1])
            owner.fence(name)
    watch = watching(tokened.server.url)
    page = watch.sign_in(tokened.token("observe:work/mine.*"), JOBS)
    drop = page.get_by_role("button", name="Delete mine.1…")
    refusal = f"Your credential does not allow messages:delete_all in {tokened.project}."
    expect(drop).to_have_attribute("title", refusal)
    expect(row(watch, "Fences", "mine.1")).to_be_visible()
    expect(page.get_by_text("other.1")).to_have_count(0)
    drop.press("Enter")
    expect(page.locator(".said")).to_contain_text("does not allow messages:delete_all")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [request for request in watch.requests if request.method == "DELETE"] == []
