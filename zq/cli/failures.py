# SPDX-License-Identifier: Apache-2.0
"""Failures as the shell sees them: one sentence on standard error, and an exit code."""

import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from zq import errors
from zq.cli.output import note
from zq.logs import without_secrets

# The exit code of each error class and its subclasses, and its meaning.
EXIT_CODES: Final[dict[type[Exception], tuple[int, str]]] = {
    click.UsageError: (2, "the command line or the configuration is wrong"),
    errors.NotFound: (3, "what was named does not exist"),
    errors.Invalid: (4, "the server refuses the request as invalid"),
    errors.NotAuthorized: (5, "the caller may not do this"),
    errors.Conflict: (6, "somebody else was faster: a message is claimed, a claim was lost, a key was used before"),
    errors.MessageClaimed: (6, ""),
    errors.MetadataConflict: (6, ""),
    errors.KeyReused: (6, ""),
    errors.Unavailable: (7, "the server or its store cannot be reached, or has no place left"),
    errors.Crowded: (7, ""),
    errors.TooManyRequests: (7, ""),
}
# Errors of one resource that say nothing about the others.
UNREADABLE: Final = (errors.Invalid, errors.NotFound, errors.NotAuthorized, errors.Conflict, errors.StoreDamaged)
# The exit code after Ctrl-C.
INTERRUPTED: Final = 130


class Failure(click.ClickException):
    """Ends the program with a sentence and a code."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


def failure(error: Exception) -> Failure:
    """What to show of an error."""
    return Failure(sentence(error), exit_code(error))


def exit_code(error: BaseException) -> int:
    """The code of an error; one that only says where work stopped has the code of its cause."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind][0]
    return exit_code(error.__cause__) if error.__cause__ is not None else 1


def sentence(error: Exception) -> str:
    """One sentence, with the file's name if it is about a file, and the cause if that says why."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror or error}."
    if isinstance(error.__cause__, errors.ZqError):
        return f"{str(error).removesuffix('; the cause is chained.').removesuffix('.')}: {error.__cause__}"
    return str(error)


class Unread:
    """The resources that a walk through a project could not read. The walk names each and goes on."""

    def __init__(self) -> None:
        self._errors: dict[str, errors.ZqError] = {}

    def add(self, name: str, error: errors.ZqError) -> None:
        """Name a resource on standard error, once."""
        if name not in self._errors:
            note(f"{name} could not be read: {error}")
        self._errors[name] = error

    def check(self) -> None:
        """Raise ``Failure`` with the code of the first error if there is one."""
        if self._errors:
            names = ", ".join(self._errors)
            raise Failure(
                f"{len(self._errors):,} could not be read: {names}.", exit_code(next(iter(self._errors.values())))
            )


def run_to_exit(run: Callable[[], Any]) -> NoReturn:
    """Run a command and exit: what goes wrong on purpose ends with a sentence and a code."""
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
