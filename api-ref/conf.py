# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation site: ``python -m sphinx -W --keep-going -n api-ref var/reference``.

The pages are plain Markdown and readable without the site. This file adds what only the site has: the navigation, taken
from the tables of ``index.md``, the signatures of the client, and what the program says of its options, commands,
errors and metrics.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from sphinx.application import Sphinx

from zq import __version__, client
from zq.cli.reference import with_commands
from zq.client.calls import AsyncOperations, BlockingOperations, listing, operation
from zq.serving.metrics.reference import with_metrics
from zq.serving.settings.reference import with_tables
from zq.wire.reference import with_classes

project = "zq"
root_doc = "index"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
# Drawings, and what a program prints, are not for copying.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
# Contributors read the decision records in the repository; the site and its search are for users.
exclude_patterns = ["decisions/*"]
html_theme = "furo"
html_title = f"zq {release}"
html_logo = html_favicon = "_static/zq.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# Signatures name types of other packages, whose references would have to be fetched.
nitpick_ignore_regex = [("py:.*", ".*")]

SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^\| \[[^\]]+\]\(([^)#]+)\.md\)", re.MULTILINE)
OUTSIDE = re.compile(r"\]\(((?:(?:\.\./)+|decisions/)[\w./-]+\.md)\)")
SIGNATURES = "This section of the documentation [site](index.md) lists all client signatures."
KEYWORDS = ("PublishArguments", "PostArguments", "ConsumeArguments")
"""The classes in ``zq.client.handles`` that describe the ``**options`` of signatures."""
ADDED = {
    "cli": with_commands,
    "configuration": partial(with_tables, "configuration.md"),
    "errors": with_classes,
    "metrics": with_metrics,
    "queues": partial(with_tables, "queues.md"),
}
"""Functions that add generated text to a page, by page name."""


def navigation(page: str) -> str:
    """Return hidden tables of contents: for each section with a table, the pages that its rows link to."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"
        for title, section in SECTION.findall(page)
        if (pages := ENTRY.findall(section))
    )


def signatures() -> str:
    """Return the client's exports; asynchronous classes come last, without the verbs of the blocking ones."""
    blocks = []
    for name in sorted(client.__all__, key=lambda name: issubclass(getattr(client, name), AsyncOperations)):
        shared = "   :inherited-members:\n" if issubclass(getattr(client, name), BlockingOperations) else ""
        blocks.append(f".. autoclass:: zq.client.{name}\n   :members:\n{shared}")
    blocks += [f".. autoclass:: zq.client.handles.{name}\n   :members:\n" for name in KEYWORDS]
    return "```{eval-rst}\n" + "\n".join(blocks) + "```\n"


def complete(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add what only the site has. Documents that are not pages of the site become downloads."""
    source[0] = OUTSIDE.sub(r"](path:\1)", source[0])
    if page == root_doc:
        source[0] += navigation(source[0])
    if page == "client":
        assert SIGNATURES in source[0], "client.md has no placeholder for the signatures"
        source[0] = source[0].replace(SIGNATURES, signatures())
    if page in ADDED:
        source[0] = ADDED[page](source[0])


def as_method(verb: Any) -> Callable[..., Any]:
    """Return a blocking method with the verb's signature, which returns the result that its ``Call`` reads."""

    def method(*_: Any, **__: Any) -> Any: ...

    given, shown = inspect.signature(verb.__wrapped__), verb.signature(True)
    method.__signature__ = given.replace(return_annotation=shown.return_annotation)
    method.__annotations__ = {**verb.__wrapped__.__annotations__, "return": shown.return_annotation}
    method.__doc__ = verb.__doc__
    return method


def setup(app: Sphinx) -> None:
    for kind in BlockingOperations.__subclasses__():
        for name, verb in inspect.getmembers_static(kind, lambda member: isinstance(member, operation | listing)):
            setattr(kind, name, as_method(verb))
    app.connect("source-read", complete)
