"""Appends events with redis-py. docs/producers.md explains the commands."""

import time
import zlib

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

RETENTION_MS = 600_000  # as --retention of the workers


def partition(key: str, partitions: int = 16) -> int:
    tag, start = key, key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            tag = key[start + 1:end]
    return zlib.crc32(tag.encode()) % partitions


def append(r: redis.Redis, events: list[tuple[str, int]]) -> None:
    min_id = int(time.time() * 1000) - RETENTION_MS
    pipe = r.pipeline(transaction=False)
    streams = set()
    for key, count in events:
        stream = "sc:{%d}:events" % partition(key)
        pipe.xadd(stream, {"key": key, "count": count}, minid=min_id, approximate=True)
        streams.add(stream)
    for stream in streams:
        pipe.pexpire(stream, RETENTION_MS)
    pipe.execute()


# redis-py 6 and later retries three times by default.
r = redis.Redis(host="127.0.0.1", port=6379, retry=Retry(NoBackoff(), 0))
append(r, [("user:42", 1), ("{tenant1}:a", 3)])
