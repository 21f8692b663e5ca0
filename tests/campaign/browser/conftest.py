# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the console's daily tests."""

from tests.console.conftest import client, context, guard, project, server, tab, tokened, watch, watching

__all__ = ["client", "context", "guard", "project", "server", "tab", "tokened", "watch", "watching"]
