# SPDX-License-Identifier: Apache-2.0
"""Error messages and exit codes of the command line."""

import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from zq import errors
from zq.cli.output import note
from zq.logs import without_secrets

# Exit codes of error classes, including their subclasses, with the meanings that the help shows.
EXIT_CODES: Final[dict[type[Exception], tuple[int, str]]] = {
    click.UsageError: (2, "invalid command line or configuration"),
    errors.NotFound: (3, "object does not exist"),
    errors.Invalid: (4, "invalid request"),
    errors.NotAuthorized: (5, "permission denied"),
    errors.Conflict: (6, "conflict: claimed message, expired claim or reused key"),
    errors.MessageClaimed: (6, ""),
    errors.MetadataConflict: (6, ""),
    errors.KeyReused: (6, ""),
    errors.Unavailable: (7, "server or store unavailable or overloaded"),
    errors.Crowded: (7, ""),
    errors.TooManyRequests: (7, ""),
}
# Errors that affect only one queue or topic.
RESOURCE_ERRORS: Final = (errors.Invalid, errors.NotFound, errors.NotAuthorized, errors.Conflict, errors.StoreDamaged)
# Exit code of a dry run that found changes.
DRIFT: Final = 8
# Exit code of a canary that has lost messages.
LOSS: Final = 9
# Exit code of a canary that could not verify whether messages were lost.
UNVERIFIED: Final = 10
# Exit code after Ctrl-C.
INTERRUPTED: Final = 130


class Failure(click.ClickException):
    """An error that ends the program with a message and an exit code."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


def failure(error: Exception) -> Failure:
    return Failure(error_message(error), exit_code(error))


def exit_code(error: BaseException) -> int:
    """Return the exit code for the error's class or its nearest base class in ``EXIT_CODES``.

    If ``EXIT_CODES`` has no such class, return the exit code of the error's cause, or 1.
    """
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind][0]
    return exit_code(error.__cause__) if error.__cause__ is not None else 1


def error_message(error: Exception) -> str:
    """Return the message of an error, including the file name of an ``OSError`` and the cause of a chained error."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror or error}."
    if isinstance(error.__cause__, errors.ZqError):
        return f"{str(error).removesuffix('; the cause is chained.').removesuffix('.')}: {error.__cause__}"
    return str(error)


class UnreadableResources:
    """The queues and topics that a command could not read and has skipped."""

    def __init__(self) -> None:
        self._errors: dict[str, errors.ZqError] = {}

    def add(self, name: str, error: errors.ZqError) -> None:
        """Record a queue or topic that cannot be read. If it was not recorded before, print the error."""
        if name not in self._errors:
            note(f"{name} could not be read: {error}")
        self._errors[name] = error

    def check(self) -> None:
        """Raise ``Failure`` with the exit code of the first recorded error, if any."""
        if self._errors:
            names = ", ".join(self._errors)
            raise Failure(
                f"{len(self._errors):,} could not be read: {names}.", exit_code(next(iter(self._errors.values())))
            )


def run_to_exit(run: Callable[[], Any]) -> NoReturn:
    """Run a command and exit. Expected errors are printed as messages and determine the exit code."""
    try:
        code = run()
    except click.Abort:
        code = INTERRUPTED
    except Failure as error:
        note(without_secrets(error.message), error=True)
        code = error.code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        note(without_secrets(" ".join(error.format_message().split())), error=True)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)
