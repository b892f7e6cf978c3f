// Appends events with node-redis. docs/producers.md explains the commands.
import { crc32 } from 'node:zlib'; // Node 20.15, 22.2 and later
import { createClient } from 'redis';

const RETENTION_MS = 600_000; // as --retention of the workers

function partition(key, partitions = 16) {
  const start = key.indexOf('{');
  const end = start < 0 ? -1 : key.indexOf('}', start + 1);
  return crc32(end > start + 1 ? key.slice(start + 1, end) : key) % partitions;
}

async function append(client, events) {
  const minId = Date.now() - RETENTION_MS;
  const pipe = client.multi();
  const streams = new Set();
  for (const { key, count = 1 } of events) {
    const stream = `sc:{${partition(key)}}:events`;
    pipe.xAdd(stream, '*', { key, count: String(count) }, {
      TRIM: { strategy: 'MINID', strategyModifier: '~', threshold: minId },
    });
    streams.add(stream);
  }
  for (const stream of streams) pipe.pExpire(stream, RETENTION_MS);
  await pipe.execAsPipeline();
}

const client = createClient({ url: 'redis://127.0.0.1:6379' });
await client.connect();
await append(client, [{ key: 'user:42' }, { key: '{tenant1}:a', count: 3 }]);
