package httpapi_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// halfACluster is a client of a Cluster of two masters, of which one is not there:
// the slots below 8192 are at addr, the others at an address that nobody has.
func halfACluster(t *testing.T, addr string) *redis.ClusterClient {
	t.Helper()
	c := stream.NewCluster(&redis.ClusterOptions{
		Addrs: []string{addr}, ContextTimeoutEnabled: true, DialerRetries: 1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addr}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}},
			}, nil
		},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// keyAt returns a key whose partition is in the half of the slots that is asked for.
func keyAt(t *testing.T, w *world, rule string, alive bool) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("%s:%d", rule, i)
		if slotOf(w.keys.Events(w.keys.Partition(key))) < 8192 == alive {
			return key
		}
	}
	t.Fatal("no such key")
	return ""
}

// slotOf returns Redis Cluster's slot of a key whose hash tag is the partition.
func slotOf(key string) int {
	tag := key
	for i := range key {
		if key[i] == '{' {
			for j := i; j < len(key); j++ {
				if key[j] == '}' {
					tag = key[i+1 : j]
					break
				}
			}
			break
		}
	}
	crc := uint16(0) // CRC16-XMODEM
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % 16384
}

// Failures of a dead shard count for that shard alone: checks with a key of the dead shard and a key of a healthy one
// do not stop the answers of the healthy one.
func TestADeadShardTakesNoAnswersFromTheOthers(t *testing.T) {
	redis := streamtest.EmbeddedRedis(t)
	w := newWorldWith(t, halfACluster(t, redis.Addr()), func(*check.Config, *httpapi.Config) {},
		rule("allow", func(r *windows.Rule) { r.OnError = windows.OnErrorAllow },
			windows.Window{Limit: 1000, Per: tenAMinute.Windows[0].Per}))
	dead, healthy := keyAt(t, w, "allow", false), keyAt(t, w, "allow", true)
	for i := range 20 {
		both := w.post(t, fmt.Sprintf(`{"checks":[{"key":%q},{"key":%q}]}`, dead, healthy))
		if source := nth(t, both, 0)["source"]; both.status != 200 || source != "policy" {
			t.Fatalf("both, %d: %s", i, both.text)
		}
	}
	if alone := w.get(t, healthy); alone.str("source") != "redis" {
		t.Errorf("after checks that named a dead shard too, the healthy one is answered by policy: %s", alone.text)
	}
	if used := w.used(t, healthy); used != 1 {
		t.Errorf("%d of the healthy key used, want 1: what was decided by policy charges nothing", used)
	}
}
