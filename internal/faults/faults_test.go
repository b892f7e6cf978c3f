package faults

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// setting reads a number from the environment.
func setting(t testing.TB, name string, def uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a whole number", name, text)
	}
	return n
}

// TestFaults runs the load and causes faults for MINUTES (10 s without it, 30 s in CI). Then it waits
// until everything is at rest, and verifies the counts.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed, minutes := setting(t, "SEED", 1), setting(t, "MINUTES", 0)
	lasts := time.Duration(minutes) * time.Minute
	if minutes == 0 {
		lasts = time.Duration(setting(t, "STREAMCOUNTER_TEST_FAULTS_S", 10)) * time.Second
	}
	t.Logf("SEED=%d MINUTES=%d", seed, minutes)
	s := newSystem(t, 3)
	s.minutes = minutes
	guard, tap := startGuard(t, s), startTap(t, s)
	d := &driver{s: s, record: newRecord()}

	stop := d.start(seed)
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	struck := inflict(ctx, s, seed, d.record)
	// On a busy machine, a check may have no answer in time while there are faults.
	streamtest.Eventually(t, "each kind of load had an answer", d.loaded)
	stop()
	s.rest()
	d.lateAtRest(tap, seed)
	d.clearOverrides(t)
	d.record.ledger.stepped()
	s.drained()
	d.wantSlotsFree(t, seed)
	s.drained()

	v := &verdict{t: t, rec: d.record, tap: tap, logs: s.logs(), alerts: s.alerts()}
	v.verifyEvents()
	v.verifyChecks()
	v.verifyHolders()
	levels := v.verifyAlerts()
	v.verifyTap()
	twice := tap.crossedTwice()
	over := v.verifyValues(s)
	v.end()
	throttled := v.verifyGuard(guard)

	t.Logf("events: %d acknowledged, %d unknown, %d deleted with their stream before they were counted; checks: %d "+
		"answered, %d units granted; %d without an answer in all; alerts: %d, in %d keys, %d of which crossed "+
		"their limit twice at one millisecond; %d keys throttled at the end, as the guard knows",
		numbers(d.record.acked), numbers(d.record.unknown), numbers(d.record.excused), d.checks.Load(),
		d.record.granted(),
		d.errors.Load(), levels, len(v.alerts), twice, throttled)
	t.Logf("different values: %d checks granted, %d denied while the clock was not stepped, %d keys with more than "+
		"their limit", d.valued.Load(), len(d.record.denials), over)
	t.Logf("%d reservations granted; %d checks with an idempotency key; %d checks of keys in an operator's hand; "+
		"%d reloads, %d grants of the rule that changes, %d from leases", d.holds.Load(), d.again.Load(),
		d.operated.Load(), d.reloads.Load(), d.moved.Load(), d.leased.Load())
	for _, name := range slices.Sorted(maps.Keys(struck)) {
		t.Logf("%4d  %s", struck[name], name)
	}
	rare := d.leased.Load() > 0 && d.valued.Load() > 0 && over > 0
	if levels == 0 || twice == 0 || throttled == 0 || minutes > 0 && !rare {
		t.Error("there was no load: the run proves nothing")
	}
	for _, f := range faults {
		if struck[f.name] == 0 && minutes > 0 && (f.name != "clock stepped" || s.clock != nil) {
			t.Errorf("%s never struck", f.name)
		}
	}
}

// verdict collects the broken promises of a run. If many keys break a promise, it reports the promise once, with what
// happened to the first key.
type verdict struct {
	t      testing.TB
	rec    *record
	tap    *tap
	logs   map[string][]entry
	alerts map[string][]api.Transition
	broken map[string]int // what is said → how many keys
}

// fail says that key breaks a promise.
func (v *verdict) fail(key, format string, args ...any) {
	v.t.Helper()
	if v.broken == nil {
		v.broken = map[string]int{}
	}
	if v.broken[format]++; v.broken[format] > 1 {
		v.t.Fail()
		return
	}
	v.t.Errorf("%s\n%s", fmt.Sprintf(format, args...), v.story(key))
}

// end tells how many more keys there were of each.
func (v *verdict) end() {
	v.t.Helper()
	for format, n := range v.broken {
		if n > 1 {
			v.t.Logf("and %d more of: %s", n-1, format)
		}
	}
}

// charged returns how many units of a key were charged.
func (v *verdict) charged(key string) (units int64) {
	for _, e := range v.logs[key] {
		units += e.count
	}
	return units
}

func (v *verdict) published(key string) (list []moved) {
	for _, tr := range v.alerts[key] {
		list = append(list, movedOf(tr))
	}
	return list
}

// story is what happened to a key, in the order of Redis's clock, the last 25 lines.
func (v *verdict) story(key string) string {
	type line struct {
		ms   int64
		text string
	}
	var lines []line
	for _, e := range v.logs[key] {
		lines = append(lines, line{e.ms, fmt.Sprintf("counted %d, %d in all", e.count, e.total)})
	}
	for _, m := range v.tap.all()[key] {
		lines = append(lines, line{m.at, "in the outbox: " + m.String()})
	}
	for i, m := range v.published(key) {
		lines = append(lines, line{m.at, "published: " + m.String() + ", " + v.alerts[key][i].ID})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.ms, b.ms) })
	var b strings.Builder
	if n := len(lines) - 25; n > 0 {
		fmt.Fprintf(&b, "    … %d lines before\n", n)
		lines = lines[n:]
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "    %d  %s\n", l.ms, l.text)
	}
	return b.String()
}

// falls tells the keys whose windows end within seconds.
func falls(key string) bool {
	return limitOf(key) > 0 || slices.Contains([]string{"b", "d", "x"}, formOf(key))
}

// Limits of the rules below.
const (
	eventLimit = 2000
	checkLimit = 50
	checkPer   = 2 * time.Second
)

// The windows of a day keep every entry for the verification.
var rules = fmt.Sprintf(`
rules:
  - name: events
    match: "e:*"
    windows: [{limit: %[1]d, per: 24h}]
    alerts: [50%%, 80%%]
    hold: 0s
  - name: repeated
    match: "r:*"
    windows: [{limit: %[1]d, per: 24h}]
    alerts: [50%%, 80%%]
    hold: 0s
  - name: checks
    match: "c:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 200ms
    on_error: deny
  - name: bursts
    match: "b:*"
    windows: [{limit: %[4]d, per: %[5]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
  - name: operated
    match: "o:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
    on_error: deny
  - name: again
    match: "i:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
    on_error: deny
  - name: units
    match: "t*:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
  - name: slots
    match: "s:*"
    windows: [{limit: %[6]d, in_flight: %[7]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
`, eventLimit, checkLimit, checkPer, burstLimit, burstPer, slotLimit, slotFor)

// system is all of it: servers, proxies, and the program's processes.
type system struct {
	t      testing.TB
	redis  *streamtest.Server
	clock  *streamtest.ServerClock // Redis's; nil where it has the system's
	nats   *streamtest.Server
	admin  redis.UniversalClient // straight to Redis, for faults and the verification
	keys   *stream.Keys
	toWork []*streamtest.Proxy // one per worker
	toAsk  *streamtest.Proxy   // the server's
	toAdd  *streamtest.Proxy   // the producer's
	work   []*streamtest.Server
	serve  *streamtest.Server
	base   string // of the server's HTTP
	grpc   string // address of the server's gRPC
	// producer opens the client that a producer appends with.
	producer func() redis.UniversalClient
	file     string // of the rules
	// minutes that the run is to last, 0 for a short one.
	minutes uint64
}

func newKeys(t testing.TB) *stream.Keys {
	t.Helper()
	keys, err := stream.NewKeys("sc", 4)
	testkit.Must(t, err)
	return keys
}

func newSystem(t testing.TB, workers int) *system {
	t.Helper()
	s := &system{t: t, nats: streamtest.OwnNATS(t)}
	s.redis, s.clock = streamtest.OwnRedisWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
	s.admin = streamtest.Connect(t, s.redis.Addr())
	s.keys = newKeys(t)
	s.toAsk, s.toAdd = streamtest.NewProxy(t, s.redis.Addr()), streamtest.NewProxy(t, s.redis.Addr())
	s.producer = func() redis.UniversalClient { return streamtest.Connect(t, s.toAdd.Addr) }
	urls := []string{"redis://" + s.toAsk.Addr}
	for range workers {
		p := streamtest.NewProxy(t, s.redis.Addr())
		s.toWork, urls = append(s.toWork, p), append(urls, "redis://"+p.Addr)
	}
	s.start(rulesIn(0), urls...)
	return s
}

// start starts the program's processes, each with its URL of Redis: the server, and then the workers. It waits for the
// server.
func (s *system) start(rules string, urls ...string) {
	s.t.Helper()
	s.file = testkit.WriteFile(s.t, "rules.yml", rules)
	program, port := streamtest.Build(s.t), testkit.FreeAddr(s.t)
	s.base, s.grpc = "http://"+port, testkit.FreeAddr(s.t)
	common := []string{"--rules", s.file, "--prefix", s.keys.Prefix, "--partitions",
		fmt.Sprint(s.keys.Partitions)}
	process := func(args ...string) *streamtest.Server {
		p := streamtest.Process(s.t, program, `"msg":"ready"`, append(args, common...)...)
		s.t.Cleanup(func() { s.keepLog(args[0], p) })
		p.Start()
		return p
	}
	s.serve = process("serve", "--redis", urls[0], "--http", port, "--grpc", s.grpc)
	for _, url := range urls[1:] {
		s.work = append(s.work, process("work", "--redis", url, "--nats", s.nats.URL(), "--http", "127.0.0.1:0",
			"--min-idle", "1s", "--batch", "200"))
	}
	streamtest.Eventually(s.t, "the server is ready", func() (bool, string) {
		resp, err := http.Get(s.base + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
}

func (s *system) parts() []*streamtest.Server {
	return append([]*streamtest.Server{s.serve}, s.work...)
}

// keepLog ends a process. If the test has failed, it keeps the log in a file that outlives the test.
func (s *system) keepLog(name string, p *streamtest.Server) {
	if p.Kill(); s.t.Failed() {
		path := filepath.Join(os.TempDir(), "streamcounter-faults-"+name+"-"+rand.Text()+".log")
		s.t.Logf("what %s said: %s, %v", name, path, os.WriteFile(path, []byte(p.Log()), 0o600))
	}
}

// TestMain keeps go-redis quiet: that connections fail is what is done here.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	streamtest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
