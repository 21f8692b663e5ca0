# SPDX-License-Identifier: Apache-2.0
"""The open transactions in the source of a migration, which cannot be moved."""

from collections.abc import Sequence
from typing import Final

from zq.errors import StartRefused
from zq.model import Seconds, UnfinishedCommit
from zq.model.quotas import Work
from zq.serving.migration.stores import MAX_NAMES, PAGE, Store
from zq.storage.capabilities import UndecidedCommit

# Maximum number of messages that one slice of an open commit publishes or deletes.
COMMIT_SLICE: Final = 1000


class OpenTransactions:
    """The open transactions of the projects in the source: commits that are not finished, and stages."""

    def __init__(self, source: Store, projects: Sequence[str], drop_stages: bool) -> None:
        self._source = source.storage
        self._from = source.parcels
        self._projects = projects
        self._drop_stages = drop_stages

    def check(self) -> None:
        """Raise ``StartRefused`` if the projects have stages or commits that prevent the migration."""
        self._check_commits(self._source.now())
        self._check_stages()

    def _check_commits(self, now: Seconds) -> None:
        """Raise ``StartRefused`` if a commit of the projects is undecided.

        With the option ``drop_stages``, a commit whose time limit has passed is accepted, because ``Migration.begin``
        aborts it and drops its stages.
        """
        for project, producer, seconds in self._find_undecided(now):
            if seconds > 0:
                raise StartRefused(
                    f"A commit of producer {producer!r} of project {project!r} is under way. Wait {seconds:.0f} "
                    "seconds, and repeat the command."
                )
            if not self._drop_stages:
                raise StartRefused(
                    f"Stages of open transactions cannot be moved: a commit of producer {producer!r} of project "
                    f"{project!r} was interrupted. Let the producer repeat it, or drop its stages with --drop-stages."
                )

    def _find_undecided(self, now: Seconds) -> list[UndecidedCommit]:
        return [one for project in self._projects for one in self._from.find_undecided_commits(project, now)]

    def _find_unfinished(self, now: Seconds) -> list[UnfinishedCommit]:
        work = self._source.transactions
        return [one for project in self._projects for one in work.find_unfinished_commits(now, project)]

    def complete_commits(self) -> None:
        """Finish the incomplete commits (transactions) of the projects: abort undecided and complete decided ones."""
        work, now = self._source.transactions, self._source.now()
        for project, producer, _ in self._find_undecided(now):
            self._from.abort_commit(project, producer, now)
        while opened := self._find_unfinished(now):
            for commit in opened:
                while work.continue_commit(commit.project, commit.producer, COMMIT_SLICE, now):
                    pass

    def _check_stages(self) -> None:
        """Raise ``StartRefused`` if there are stages (uncommitted messages), unless ``drop_stages`` is set."""
        stages = self.find_stages()
        if stages and not self._drop_stages:
            more = f" and {len(stages) - MAX_NAMES} more" if len(stages) > MAX_NAMES else ""
            names = ", ".join(f"{name} of project {project!r}" for project, name in stages[:MAX_NAMES])
            raise StartRefused(
                f"Stages of open transactions cannot be moved: {names}{more}. Let their producers commit them, or drop "
                "them with --drop-stages."
            )

    def find_stages(self) -> list[tuple[str, str]]:
        now, found = self._source.now(), list[tuple[str, str]]()
        for project in self._projects:
            after: str | None = ""
            while after is not None:
                page = self._source.transactions.list(project, Work.STAGE, after, PAGE, now)
                found += [(project, one.name) for one in page.items]
                after = page.next
        return found

    def find_projects(self, now: Seconds) -> set[str]:
        """Return the projects that have stages or commits that are not finished."""
        used = {project for project, _ in self.find_stages()}
        used |= {one.project for one in self._find_undecided(now)} | {one.project for one in self._find_unfinished(now)}
        return used
