# SPDX-License-Identifier: Apache-2.0
"""A program that runs ``zq WORDS`` through a launcher: ``python -ISE stub.py ADDRESS WORDS``; see ``launcher``."""

import json
import os
import signal
import socket
import struct
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(address: str, words: list[str]) -> None:
    """Pass the arguments, the environment, the folder and the streams, and exit like the forked process."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    ignored = [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
    for number in set(FORWARDED).difference(ignored):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    streams = [number for number in range(3) if not is_closed(number)]
    run = {"words": words, "env": dict(os.environ), "folder": os.getcwd(), "streams": streams, "ignored": ignored}
    whole = json.dumps(run).encode()
    socket.send_fds(connection, [struct.pack("!I", len(whole))], streams)
    connection.sendall(whole)
    (status,) = struct.unpack("!i", connection.recv(4))
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def is_closed(number: int) -> bool:
    """Return whether the shell closed this stream."""
    return (sys.stdin, sys.stdout, sys.stderr)[number] is None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
