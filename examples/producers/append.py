"""Appends events to streamcounter's log, with nothing but Python itself.

    printf 'user:42 3\\n{tenant1}:a\\n' | python3 append.py 127.0.0.1:6379

reads lines of KEY [COUNT], and sends them as one pipeline. A prefix other than
"sc" and another number of partitions than 16 follow the address. REDIS_USER and
REDIS_PASSWORD in the environment log in. With a Redis client such as redis-py the
commands are the same; switch its retries off, as a repeated XADD is a second event.
"""

import os
import re
import socket
import sys
import time
import zlib

RETENTION_MS = 600_000  # as --retention of the workers


def partition(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, or of what stands in its first braces, if anything does."""
    tag, start = key, key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            tag = key[start + 1 : end]
    return zlib.crc32(tag) % partitions


def command(*words: bytes) -> bytes:
    """A command in Redis's protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def append(address: str, events: list[tuple[bytes, int]], prefix: str = "sc", partitions: int = 16) -> None:
    """Appends all events or raises; after an error some may be stored, and some not."""
    min_id = b"%d" % (int(time.time() * 1000) - RETENTION_MS)
    commands, streams = [], {}
    for key, count in events:
        stream = b"%s:{%d}:events" % (prefix.encode(), partition(key, partitions))
        words = (b"XADD", stream, b"MINID", b"~", min_id, b"*", b"key", key, b"count", b"%d" % count)
        commands.append((command(*words), b"$"))  # with how its answer begins: an ID
        streams[stream] = True
    for stream in streams:
        commands.append((command(b"PEXPIRE", stream, b"%d" % RETENTION_MS), b":1"))
    if "REDIS_PASSWORD" in os.environ:
        user = os.environ.get("REDIS_USER", "default")
        commands.insert(0, (command(b"AUTH", user.encode(), os.environ["REDIS_PASSWORD"].encode()), b"+OK"))
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"".join(text for text, _ in commands))
        replies = connection.makefile("rb")
        errors = []
        for _, begins in commands:
            reply = replies.readline()
            if not reply.endswith(b"\r\n"):
                raise ConnectionError("the connection broke: what was not answered may be stored or not")
            if reply.startswith(b"-"):
                errors.append(reply[1:].strip().decode())
            elif not reply.startswith(begins):
                raise RuntimeError(f"{address} does not answer as Redis does: {reply!r}")
            elif begins == b"$":
                replies.read(int(reply[1:]) + 2)
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(commands)} commands were refused, first: {errors[0]}")


def main() -> None:
    events = []
    for line in sys.stdin.buffer:
        key, _, count = line.rstrip(b"\r\n").partition(b" ")
        if not re.fullmatch(rb"[1-9]\d{0,8}|1000000000|", count):
            raise ValueError(f"{line!r}: the count is not 1 to 1000000000")
        if key:
            events.append((key, int(count or b"1")))
    prefix = sys.argv[2] if len(sys.argv) > 2 else "sc"
    partitions = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    append(sys.argv[1], events, prefix, partitions)
    print(f"appended {len(events)} events")


if __name__ == "__main__":
    main()
