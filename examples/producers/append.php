<?php
/*
 * Appends events to streamcounter's log, with nothing but PHP itself.
 *
 *   printf 'user:42 3\n{tenant1}:a\n' | php append.php 127.0.0.1:6379
 *
 * reads lines of KEY [COUNT], and sends them as one pipeline. A prefix other than
 * "sc" and another number of partitions than 16 follow the address. REDIS_USER and
 * REDIS_PASSWORD in the environment log in. With phpredis or Predis the commands are
 * the same; see the README.
 */
declare(strict_types=1);

const RETENTION_MS = 600000; // as --retention of the workers

/** CRC-32 of the key, or of what stands in its first braces, if anything does. */
function partition(string $key, int $partitions): int
{
    $tag = $key;
    $start = strpos($key, '{');
    if ($start !== false) {
        $end = strpos($key, '}', $start + 1);
        if ($end !== false && $end > $start + 1) {
            $tag = substr($key, $start + 1, $end - $start - 1);
        }
    }
    return (crc32($tag) & 0xffffffff) % $partitions;
}

/** A command in Redis's protocol. */
function command(string ...$words): string
{
    $out = '*' . count($words) . "\r\n";
    foreach ($words as $word) {
        $out .= '$' . strlen($word) . "\r\n" . $word . "\r\n";
    }
    return $out;
}

/**
 * Appends all events or throws; after an error some may be stored, and some not.
 *
 * @param list<array{string, int}> $events pairs of key and count
 */
function append(string $address, array $events, string $prefix = 'sc', int $partitions = 16): void
{
    $minId = (string) ((int) (microtime(true) * 1000) - RETENTION_MS);
    $commands = [];
    $begins = [];
    $streams = [];
    foreach ($events as [$key, $count]) {
        $stream = $prefix . ':{' . partition($key, $partitions) . '}:events';
        $commands[] = command('XADD', $stream, 'MINID', '~', $minId, '*', 'key', $key, 'count', (string) $count);
        $begins[] = '$'; // how its answer begins: an ID
        $streams[$stream] = true;
    }
    foreach (array_keys($streams) as $stream) {
        $commands[] = command('PEXPIRE', $stream, (string) RETENTION_MS);
        $begins[] = ':1';
    }
    if (($password = getenv('REDIS_PASSWORD')) !== false) {
        array_unshift($commands, command('AUTH', getenv('REDIS_USER') ?: 'default', $password));
        array_unshift($begins, '+OK');
    }
    $connection = stream_socket_client('tcp://' . $address, $code, $message, 5.0);
    if ($connection === false) {
        throw new RuntimeException("no Redis at $address: $message");
    }
    stream_set_timeout($connection, 5);
    $all = implode('', $commands);
    for ($sent = 0; $sent < strlen($all); $sent += $n) {
        $n = fwrite($connection, substr($all, $sent, 65536));
        if ($n === false || $n === 0) {
            throw new RuntimeException('the connection broke: what was sent may be stored or not');
        }
    }
    $errors = [];
    foreach ($begins as $begin) {
        $reply = fgets($connection);
        if ($reply === false || !str_ends_with($reply, "\r\n")) {
            throw new RuntimeException('the connection broke: what was not answered may be stored or not');
        }
        if ($reply[0] === '-') {
            $errors[] = trim(substr($reply, 1));
        } elseif (!str_starts_with($reply, $begin)) {
            throw new RuntimeException("$address does not answer as Redis does: " . trim($reply));
        } elseif ($begin === '$') {
            fgets($connection);
        }
    }
    fclose($connection);
    if ($errors !== []) {
        throw new RuntimeException(count($errors) . ' of ' . count($commands) . ' commands were refused, first: ' . $errors[0]);
    }
}

$events = [];
while (($line = fgets(STDIN)) !== false) {
    [$key, $count] = explode(' ', rtrim($line, "\r\n"), 2) + [1 => ''];
    if (!preg_match('/^([1-9]\d{0,8}|1000000000|)$/D', $count)) {
        throw new UnexpectedValueException(rtrim($line) . ': the count is not 1 to 1000000000');
    }
    if ($key !== '') {
        $events[] = [$key, (int) ($count ?: 1)];
    }
}
append($argv[1], $events, $argv[2] ?? 'sc', (int) ($argv[3] ?? 16));
echo 'appended ', count($events), " events\n";
