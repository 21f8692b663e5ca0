# SPDX-License-Identifier: Apache-2.0
"""The parts of the protocol in which a server tells what is published."""

Part = bytes | int
"""Of what a server says."""


def spoken(read: bytes) -> tuple[list[list[Part]], bytes]:
    """What a server says: arrays of strings and numbers, or a line by itself; and the end that is not complete."""
    found: list[list[Part]] = []
    at = 0
    while (end := read.find(b"\r\n", at)) >= 0:
        count = int(read[at + 1 : end]) if read[at : at + 1] == b"*" else 0
        parts: list[Part] = [] if count else [read[at:end]]
        begin = end + 2
        while len(parts) < count and (end := read.find(b"\r\n", begin)) >= 0:
            kind, number = read[begin : begin + 1], read[begin + 1 : end]
            begin = end + 2
            if kind != b"$":
                parts.append(int(number))
            elif begin + int(number) + 2 <= len(read):
                parts.append(read[begin : begin + int(number)])
                begin += int(number) + 2
            else:
                break
        if len(parts) < max(count, 1):
            break
        found.append(parts)
        at = begin
    return found, read[at:]
