package processes

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

type running struct {
	rules    atomic.Value // fingerprint
	tried    atomic.Int32 // announcements begun
	registry *prometheus.Registry
	log      testkit.Log
	stop     func()
}

func (r *running) disagree(t testing.TB) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	testkit.Must(t, err)
	return families[0].GetMetric()[0].GetGauge().GetValue() // it is the only metric
}

type world struct {
	redis redis.UniversalClient
	keys  *stream.Keys
	user  redis.UniversalClient // the connection of the processes
}

// newWorld returns a prefix on a real Redis, with processes of the user work, or on an embedded one if there is no real
// one.
func newWorld(t *testing.T) world {
	t.Helper()
	c := streamtest.AnyRedis(t)
	w := world{redis: c, keys: streamtest.Keys(t, 4), user: c}
	if streamtest.HasRedis(t) {
		w.user = streamtest.Connect(t, streamtest.RedisAs(t, "work"))
	}
	return w
}

func (w world) start(t testing.TB, name, rules string, grace time.Duration) *running {
	t.Helper()
	r := &running{registry: prometheus.NewRegistry()}
	r.rules.Store(rules)
	a := NewAnnouncer(Config{Redis: w.user, Keys: w.keys, Name: name, Registry: r.registry,
		Fingerprint: func() string { r.tried.Add(1); return r.rules.Load().(string) }, Every: 50 * time.Millisecond,
		Grace: grace,
		Log:   slog.New(slog.NewJSONHandler(&r.log, nil))})
	r.stop = testkit.Background(t, a.Run)
	return r
}

// A process that ends is no longer compared: at once if it stops, a few seconds later if it was killed. A field that
// is not an announcement is removed.
func TestProcessesThatEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	now := w.redis.Time(ctx).Val().UnixMilli()
	for name, value := range map[string]string{"work killed": fmt.Sprintf("cc %d %d", now-5, now-1),
		"foreign": "hello", "for ever": fmt.Sprintf("dd %d 999999999999999", now)} {
		testkit.Must(t, w.redis.HSet(ctx, w.keys.Processes(), name, value).Err())
	}
	a, b := w.start(t, "work a", "aa", time.Millisecond), w.start(t, "work b", "bb", time.Hour)
	streamtest.Eventually(t, "b is seen, and nothing else", func() (bool, string) {
		n := w.redis.HLen(ctx, w.keys.Processes()).Val()
		return a.disagree(t) == 1 && n == 2, fmt.Sprint(a.disagree(t), n)
	})
	b.stop()
	if has := w.redis.HExists(ctx, w.keys.Processes(), "work b").Val(); has {
		t.Error("a process that has stopped is still there")
	}
	streamtest.Eventually(t, "b is gone", func() (bool, string) { return a.disagree(t) == 0, "" })
	a.stop()
	if w.redis.Exists(ctx, w.keys.Processes()).Val() != 0 {
		t.Error("the hash stays when nobody runs")
	}
}

// The time for which a process has had its rules is kept while the rules stay the same.
func TestSinceWhen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	now := w.redis.Time(ctx).Val().UnixMilli()
	times := fmt.Sprint(" ", now-3600_000, " ", now+60_000)
	testkit.Must(t, w.redis.HSet(ctx, w.keys.Processes(), "work a", "aa"+times, "work b", "bb"+times).Err())
	w.start(t, "work a", "aa", time.Hour)
	// Otherwise work b removes its old record.
	streamtest.Eventually(t, "work a has announced itself", func() (bool, string) {
		n := w.redis.HGet(ctx, w.keys.Processes(), "work a").Val()
		return !strings.HasSuffix(n, fmt.Sprint(now+60_000)), n
	})
	w.start(t, "work b", "cc", time.Hour)
	streamtest.Eventually(t, "both have announced themselves", func() (bool, string) {
		list, now, err := List(ctx, w.redis, w.keys)
		words := Words(ByRules(list))
		return err == nil && words == "aa: work a; cc: work b" && now-list[0].SinceMs >= 3600_000 &&
			now-list[1].SinceMs < 60_000, fmt.Sprint(words, list, err)
	})
}

// wantOnce waits until a process has failed to announce itself several times, and expects one warning, with a text.
func wantOnce(t *testing.T, p *running, text string) {
	t.Helper()
	streamtest.Eventually(t, "the failure is in the log", func() (bool, string) {
		said := p.log.String()
		return strings.Contains(said, text), said
	})
	first := p.tried.Load()
	streamtest.Eventually(t, "it has tried several times more", func() (bool, string) {
		n := p.tried.Load()
		return n > first+3, fmt.Sprint(n)
	})
	p.stop()
	if said := p.log.String(); strings.Count(said, text) != 1 || strings.Count(said, `"level":"WARN"`) != 1 {
		t.Errorf("the log has %s, want one warning with %q", said, text)
	}
}

// If the user may not announce, this is logged once, and the process goes on.
func TestARefusalIsToldOnce(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t)
	keys, err := stream.NewKeys("sc", 4)
	testkit.Must(t, err)
	w := world{user: streamtest.Connect(t, secured.As("producer")), keys: keys}
	wantOnce(t, w.start(t, "work a", "aa", time.Hour), "NOPERM")
}

// If Redis lost everything, a running process records the number of partitions again. If another process was faster,
// with another number, this is logged, but not at each announcement.
func TestPartitionsAreRecordedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	a := w.start(t, "work a", "aa", time.Hour)
	for range 2 {
		streamtest.Eventually(t, "the number of partitions is recorded", func() (bool, string) {
			has := w.redis.HGetAll(ctx, w.keys.Meta()).Val()
			return has["partitions"] == "4" && has["version"] == "1", fmt.Sprint(has)
		})
		testkit.Must(t, w.redis.Del(ctx, w.keys.Meta(), w.keys.Processes()).Err())
	}
	testkit.Must(t, w.redis.HSet(ctx, w.keys.Meta(), "partitions", 8).Err())
	told := func() int { return strings.Count(a.log.String(), "partitions=8, this process was started with 4") }
	streamtest.Eventually(t, "the log has both numbers", func() (bool, string) { return told() > 0, a.log.String() })
	for range 2 {
		testkit.Must(t, w.redis.Del(ctx, w.keys.Processes()).Err())
		streamtest.Eventually(t, "it announces itself once more", func() (bool, string) {
			return w.redis.Exists(ctx, w.keys.Processes()).Val() == 1, ""
		})
	}
	if n, has := told(), w.redis.HGet(ctx, w.keys.Meta(), "partitions").Val(); n != 1 || has != "8" {
		t.Errorf("logged %d times, want once; Redis has %s partitions, want still 8", n, has)
	}
}

// The log names once the key of the wrong type for which an announcement fails.
func TestTheKeyOfAFailedAnnouncementIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, key := range []string{w.keys.Libraries(), w.keys.Processes()} {
		testkit.Must(t, w.redis.Set(t.Context(), key, "not ours", 0).Err())
		wantOnce(t, w.start(t, "work a", "aa", time.Hour), key)
		testkit.Must(t, w.redis.Del(t.Context(), key).Err())
	}
}

// If processes have different rules, the metric shows it at once. The log has it once, with both sets of rules, when it
// has lasted for the grace time: a reload reaches one process before the other. That they agree again is logged too.
func TestDifferentRulesAreTold(t *testing.T) {
	var log testkit.Log
	a := NewAnnouncer(Config{Grace: time.Minute, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	const differ, agree = "processes run with different rules", "all processes run with the same rules again"
	seen := 0
	for i, x := range []struct {
		second      int64
		own, others string // fingerprints
		disagree    float64
		says        string
	}{
		{0, "aa", "aa", 0, ""},
		{1, "aa", "bb", 1, ""}, {60, "aa", "bb", 1, ""}, {61, "bb", "bb", 0, ""}, // a reload under way
		{70, "aa", "bb", 1, ""}, {130, "aa", "bb", 1, differ}, {200, "aa", "bb", 1, ""},
		{201, "aa", "bb bb", 2, ""}, {300, "aa", "bb bb", 2, ""}, // another process with the same rules
		{301, "aa", "bb cc", 2, ""}, {361, "aa", "bb cc", 2, differ},
		{362, "aa", "aa", 0, agree}, {363, "aa", "aa", 0, ""},
		{370, "aa", "bb", 1, ""}, {430, "aa", "bb", 1, differ},
	} {
		all := []Process{{Name: "work a", Fingerprint: x.own}}
		for _, fingerprint := range strings.Fields(x.others) {
			all = append(all, Process{Name: "work b", Fingerprint: fingerprint})
		}
		a.compare(x.own, all, 1000*x.second)
		said := log.String()[seen:]
		if seen += len(said); !strings.Contains(said, x.says) || (said == "") != (x.says == "") {
			t.Errorf("%d: the log has %q, want %q", i, said, x.says)
		}
		for _, part := range []string{"own=aa", "aa: work a", "bb: work b"} {
			if x.says == differ && !strings.Contains(said, part) {
				t.Errorf("%d: the log has %q, want %q in it", i, said, part)
			}
		}
		if n := testutil.ToFloat64(a.disagree); n != x.disagree {
			t.Errorf("%d: %g processes disagree, want %g", i, n, x.disagree)
		}
	}
}
