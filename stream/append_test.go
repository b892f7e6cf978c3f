package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// go-redis retries by default, and ignores the deadlines of contexts. A retention below 1s is refused too.
func TestNewLogRefusesClients(t *testing.T) {
	k := newKeys(t, 1)
	for name, c := range map[string]redis.UniversalClient{
		"as it comes": redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}),
		"once":        redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: 1}),
		"through a Sentinel": redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m",
			SentinelAddrs: []string{"127.0.0.1:1"}}),
		"a Cluster's": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
		"a Cluster's, by half": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"},
			MaxRetries: -1}),
	} {
		if _, err := stream.NewLog(c, k, time.Minute); err == nil || !strings.Contains(err.Error(), "MaxRetries: -1") {
			t.Errorf("%s: %v, want an error that names MaxRetries: -1", name, err)
		}
		testkit.Must(t, c.Close())
	}
	for name, c := range map[string]redis.UniversalClient{
		"one":          redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}),
		"of a Cluster": stream.NewCluster(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
		"of many":      redis.NewRing(&redis.RingOptions{MaxRetries: -1}),
	} {
		if _, err := stream.NewLog(c, k, time.Minute); err == nil || !strings.Contains(err.Error(), "ContextTimeout") {
			t.Errorf("%s: %v, want an error that names ContextTimeoutEnabled", name, err)
		}
		testkit.Must(t, c.Close())
	}
	never := stream.NewCluster(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true})
	newLog(t, never, k, time.Second)
	_, noClient := stream.NewLog(nil, k, time.Minute)
	if _, noKeys := stream.NewLog(never, nil, time.Minute); noClient == nil || noKeys == nil {
		t.Errorf("without a client or keys: %v, %v", noClient, noKeys)
	}
	if _, err := stream.NewLog(never, k, time.Second-1); err == nil {
		t.Error("a retention below 1s was taken")
	}
	testkit.Must(t, never.Close())
}

func TestAppend(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 4)
		log := newLog(t, c, k, time.Minute)
		if out := log.Append(ctx, nil); out.Appended != 0 || out.Err != nil {
			t.Errorf("nothing to append: %+v", out)
		}
		list := []api.Event{{Key: "a", Count: 1}, {Key: "b c é", Count: 2}, {Key: "{a}:1", Count: 1_000_000_000},
			{Key: "a", Count: 4}}
		out := log.Append(ctx, list)
		if diff := cmp.Diff(stream.Outcome{Appended: 4, Entries: 4}, out); diff != "" {
			t.Errorf("outcome (-want +got):\n%s", diff)
		}
		// stored also checks that each key is in its partition.
		want := map[string][]int64{"a": {1, 4}, "b c é": {2}, "{a}:1": {1_000_000_000}}
		if diff := cmp.Diff(want, stored(t, c, k)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		for _, key := range []string{"a", "b c é"} {
			name := k.Events(k.Partition(key))
			if left := c.PTTL(ctx, name).Val(); left > time.Minute || left < 30*time.Second {
				t.Errorf("%s expires in %s, want about the retention, 1m", name, left)
			}
		}
	})
}

func TestAppendTrimsWhatIsOlderThanTheRetention(t *testing.T) {
	c, k := streamtest.Connect(t, streamtest.Redis(t)), newKeys(t, 1)
	ctx, name, now := t.Context(), k.Events(0), time.Now()
	put := func(ms int64) {
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: name, ID: fmt.Sprintf("%d-*", ms),
			Values: []any{"key", "old", "count", 1}}).Err())
	}
	const old, fresh = 2000, 100 // of a few hundred bytes each node; whole nodes go
	for range old {
		put(now.Add(-time.Hour).UnixMilli())
	}
	for range fresh {
		put(now.Add(-5 * time.Minute).UnixMilli())
	}
	if out := newLog(t, c, k, 10*time.Minute).Append(ctx, []api.Event{{Key: "new", Count: 1}}); out.Err != nil {
		t.Fatal(out.Err)
	}
	left := c.XLen(ctx, name).Val()
	if left < fresh+1 {
		t.Errorf("%d entries left: some were trimmed within the retention, want %d and few more", left, fresh+1)
	}
	if left > fresh+1+old/4 {
		t.Errorf("%d entries left, want %d and few more", left, fresh+1)
	}
}

// Redis was stopped: no connection can be made, so certainly nothing was done.
func TestAppendWithRedisStopped(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c, k := streamtest.Connect(t, server.Addr()), newKeys(t, 4)
	log := newLog(t, c, k, time.Minute)
	if out := log.Append(t.Context(), events(1)); out.Err != nil {
		t.Fatal(out.Err)
	}
	server.Stop()
	out := log.Append(t.Context(), events(3))
	if out.Appended != 0 || len(out.Refused) != 3 || len(out.Unknown) != 0 || out.Err == nil ||
		errors.Is(out.Err, api.ErrOutcomeUnknown) {
		t.Errorf("outcome %+v, want 3 refused and an error that is not about the unknown", out)
	}
	server.Start()
	if out := log.Append(t.Context(), out.Refused); out.Err != nil {
		t.Errorf("with Redis back: %v", out.Err)
	}
	want := map[string][]int64{"user:0": {1}, "user:1": {2}, "user:2": {3}}
	if diff := cmp.Diff(want, stored(t, c, k)); diff != "" {
		t.Errorf("events that the refused ones were appended to again (-want +got):\n%s", diff)
	}
}

// The reply is lost: the events are in the log, once, but their outcome is unknown.
func TestAppendWithItsReplyLost(t *testing.T) {
	direct := streamtest.Connect(t, streamtest.Redis(t))
	proxy := streamtest.NewProxy(t, direct.Options().Addr)
	c, k := streamtest.Connect(t, proxy.Addr), newKeys(t, 4)
	warm(t, c) // otherwise the reply to the greeting would be lost
	proxy.LoseReplies(1)
	out := newLog(t, c, k, time.Minute).Append(t.Context(), events(20))
	if len(out.Unknown) != 20 || len(out.Refused) != 0 || !errors.Is(out.Err, api.ErrOutcomeUnknown) {
		t.Errorf("outcome %+v, want 20 unknown", out)
	}
	if strings.Contains(out.Err.Error(), "\n") {
		t.Errorf("one lost reply is reported several times:\n%v", out.Err)
	}
	got := stored(t, direct, k)
	for _, e := range events(20) {
		if len(got[e.Key]) != 1 {
			t.Errorf("%s stands in the log %d times, want once", e.Key, len(got[e.Key]))
		}
	}
}

// Redis refuses one partition. The other partitions are not affected.
func TestAppendRefusedInOnePartition(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k, list := newKeys(t, 4), events(20)
		testkit.Must(t, c.Set(t.Context(), k.Events(2), "no stream", 0).Err())
		refused := 0
		for _, e := range list {
			if k.Partition(e.Key) == 2 {
				refused++
			}
		}
		out := newLog(t, c, k, time.Minute).Append(t.Context(), list)
		if refused == 0 || len(out.Refused) != refused || out.Appended != 20-refused || len(out.Unknown) != 0 ||
			out.Err == nil {
			t.Errorf("outcome %+v, want %d refused and %d appended", out, refused, 20-refused)
		}
		for _, e := range out.Refused {
			if k.Partition(e.Key) != 2 {
				t.Errorf("%s was refused, which is in partition %d", e.Key, k.Partition(e.Key))
			}
		}
	})
}

// A caller that has given up before the append: nothing is sent, so each event is certainly not in the log.
func TestAppendCanceled(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k := newKeys(t, 4)
		gone := errors.New("the caller is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		out := newLog(t, c, k, time.Minute).Append(ctx, events(20))
		if len(out.Refused) != 20 || out.RefusedEvents != 20 || out.Appended+out.UnknownEvents != 0 ||
			!errors.Is(out.Err, gone) {
			t.Errorf("outcome %+v, want 20 refused", out)
		}
		if got := stored(t, c, k); len(got) != 0 {
			t.Errorf("the log has %v", got)
		}
	})
}

// A service passes the header of its caller on, whatever it is. A value that is no trace context is left out, so that
// the event is counted, and so are the events that are merged with it.
func TestATraceThatIsNotValidIsLeftOut(t *testing.T) {
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const good, vendor = "00-" + trace + "-" + span + "-01", "vendor=1"
	zero := strings.Repeat("0", 32)
	c := streamtest.AnyRedis(t)
	appended := map[string]func(log *stream.Log, e, next api.Event) error{
		"Append": func(log *stream.Log, e, _ api.Event) error { return log.Append(t.Context(), []api.Event{e}).Err },
		"Producer": func(log *stream.Log, e, next api.Event) error {
			p := newProducer(t, log, stream.ProducerConfig{Linger: forGood})
			put(t, p, e, next)
			return p.Close(context.WithoutCancel(t.Context()))
		},
	}
	for _, s := range []struct {
		parent, state, kept, keptState string
	}{
		{good, vendor, good, vendor},
		{good, strings.Repeat("s", 512), good, strings.Repeat("s", 512)},
		{good, strings.Repeat("s", 513), good, ""},
		{"01-" + trace + "-" + span + "-01-later", vendor, "01-" + trace + "-" + span + "-01-later", vendor},
		{"", vendor, "", ""},
		{"no trace", vendor, "", ""},
		{strings.Repeat("x", 300_000), vendor, "", ""},
		{"01-" + trace + "-" + span + "-01-" + strings.Repeat("x", 300_000), vendor, "", ""},
		{good + "-more", vendor, "", ""},
		{good + "\n", vendor, "", ""},
		{"ff" + good[2:], vendor, "", ""},
		{strings.ToUpper(good), vendor, "", ""},
		{"00-" + zero + "-" + span + "-01", vendor, "", ""},
		{"00-" + trace + "-" + zero[:16] + "-01", vendor, "", ""},
	} {
		for way, do := range appended {
			k := newKeys(t, 1)
			e := api.Event{Key: "ip", Count: 1, TraceParent: s.parent, TraceState: s.state}
			next := api.Event{Key: "ip", Count: 1, TraceParent: good}
			testkit.Must(t, do(newLog(t, c, k, stream.DefaultRetention), e, next))
			want := map[string]any{"key": "ip", "count": "1"}
			if way == "Producer" {
				want["count"], want["traceparent"] = "2", good
			}
			if s.kept != "" {
				want["traceparent"] = s.kept
			}
			if s.keptState != "" {
				want["tracestate"] = s.keptState
			}
			entries, err := c.XRange(t.Context(), k.Events(0), "-", "+").Result()
			testkit.Must(t, err)
			if len(entries) != 1 || !cmp.Equal(want, entries[0].Values) {
				t.Errorf("%s, %.80q, %.20q: entries %.500s, want %.500s", way, s.parent, s.state, fmt.Sprint(entries),
					fmt.Sprint(want))
			}
		}
	}
}
