<?php
// Appends events with phpredis. docs/producers.md explains the commands.

const RETENTION_MS = 600000; // as --retention of the workers

function partition(string $key, int $partitions = 16): int
{
    $tag = $key;
    $start = strpos($key, '{');
    if ($start !== false) {
        $end = strpos($key, '}', $start + 1);
        if ($end !== false && $end > $start + 1) {
            $tag = substr($key, $start + 1, $end - $start - 1);
        }
    }
    return (crc32($tag) & 0xffffffff) % $partitions; // 64-bit PHP: the mask keeps it from being negative
}

/** @param list<array{string, int}> $events pairs of key and count */
function append(Redis $redis, array $events): void
{
    $minId = (string) ((int) (microtime(true) * 1000) - RETENTION_MS);
    $pipe = $redis->pipeline();
    $streams = [];
    foreach ($events as [$key, $count]) {
        $stream = 'sc:{' . partition($key) . '}:events';
        $pipe->rawCommand('XADD', $stream, 'MINID', '~', $minId, '*', 'key', $key, 'count', (string) $count);
        $streams[$stream] = true;
    }
    foreach (array_keys($streams) as $stream) {
        $pipe->pExpire($stream, RETENTION_MS);
    }
    if (in_array(false, $pipe->exec() ?: [false], true)) { // phpredis throws nothing
        throw new RuntimeException('refused: ' . $redis->getLastError());
    }
}

$redis = new Redis();
$redis->connect('127.0.0.1', 6379);
append($redis, [['user:42', 1], ['{tenant1}:a', 3]]);
