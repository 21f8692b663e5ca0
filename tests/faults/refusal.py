# SPDX-License-Identifier: Apache-2.0
"""The form of every refused start: it ends soon, with an exit code and one error message on standard error."""

import re

from tests.servers import ZqServer

# Seconds on a busy machine. An idle one needs about one second, and three more for a lock that is held.
REFUSED_WITHIN = 15.0
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ |\[(INFO|WARNING|ERROR)\] ")


def sentence_of(server: ZqServer) -> str:
    """Start a server that must refuse, and return the error message on standard error."""
    try:
        server.launch()
        code = server.wait(REFUSED_WITHIN)
        assert code not in (0, None), server.output
        assert code > 0, f"ended by signal {-code}: {server.output}"
        assert "Traceback" not in server.output, server.output
        lines = [line for line in server.stderr.splitlines() if line.strip() and not LOG_LINE.match(line)]
        assert len(lines) == 1, f"one sentence is wanted, not:\n{server.output}"
        assert lines[0].endswith("."), lines[0]
        return lines[0]
    finally:
        server.close()
