package consumers

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: rules, a line of dashes, and steps. Steps of the second list wait until they are true;
// a number there is expected as it is, or >N. A number before a step repeats it. P/NAME is a key of partition P that
// begins with user:NAME, and P/long is a long one. "TEXT" in an entry has the escapes of Go, X*N is N bytes X, and $N
// is the ID of the entry that the step put added, the first is $1.
//
//	start POOL [SETTING...]              a pool starts. Its publisher may be down, or its second Publish (fails);
//	                                     its connection may be tight or slow; min-idle=, lock=, quarantine=DURATION;
//	                                     nats: it publishes to NATS, and compares the decisions there with Redis
//	stop POOL                            it stops cleanly
//	clock, advance DURATION              the clock of pools is the story's from now on, and moves
//	add KEY COUNT [ID]                   a producer appends an event
//	put STREAM P [id=ID] FIELD VALUE...  an entry is added to a stream of a partition as it is; id=now: by the clock
//	copy STREAM P                        each entry of a stream is added again
//	groups                               the consumer groups are created
//	read WORKER                          a worker reads all new events, and dies
//	die KEY                              an event is appended, which a worker reads that dies; no pool reads it first
//	trim P N                             the events of a partition are trimmed to N
//	foreign NAME P                       a string replaces one of a partition's keys
//	delete NAME P                        one of a partition's keys is deleted
//	block PATTERN, unblock PATTERN       an operator sets or clears a block, of a key if there is no wildcard
//	limit KEY LIMIT PER [FOR]            an operator sets a limit
//	flush, kill, restart                 Redis loses its scripts, is killed, starts with an empty memory
//	memory BYTES                         how much memory Redis may have; 0: any
//	refused KEY                          Redis refuses an event of the key
//	publish RULE KEY TEXT                somebody publishes a text on the subject of a decision
//	forge RULE KEY FIELDS                somebody publishes the last decision with other fields, as JSON; NOW, SOON
//	                                     and NEVER are times
//	imitate RULE KEY KEY FIELDS          the same on the subject of the second key
//	purge RULE KEY, streams              somebody deletes a decision, or the streams of decisions and alerts
//	keep P KEY, lose P KEY...            a partition loses its levels, overrides and these counters, and gets the
//	                                     record back that the kept key had
//	mark                                 what was logged until now does not count
//
//	used KEY N                           how much the key has used
//	told POOL KEY [TRANSITION, ...]      which transitions the pool has published
//	decision POOL KEY RULE STATE         the last decision that the pool has published
//	found RULE KEY STATE [again]         the decision that subscribers find, published again
//	same RULE KEY                        it has the version that it had at the first such step
//	kept P KEY                           the kept record is there, or no record
//	attempts POOL [N of N, ...]          how many transitions each Publish may have sent before, of how many
//	copies POOL N                        how many transitions the pool has published again
//	metric NAME N [LABEL]                the sum of a metric
//	pending N                            how many events are pending
//	length STREAM P N                    how many entries a stream of a partition has
//	entry STREAM P ID N                  how many of them have an ID
//	exists NAME P                        a partition has a key
//	fields NAME P N                      how many fields one of a partition's hashes has
//	letters P N                          how many dead letters a partition has
//	letter P I TEXT                      what is in dead letter I, which is short
//	logged N REGEXP                      how often the log says something
//
// TestStories runs each story two times: with one script call for all partitions of a read, and with a call for each.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, rules string, steps []string) []string {
		for _, how := range []string{"together", separately} {
			t.Run(how, func(t *testing.T) { tell(t, rules, steps) })
		}
		return steps
	})
}

func tell(t *testing.T, rules string, steps []string) {
	t.Parallel()
	list, err := windows.Parse("rules.yml", []byte(rules))
	testkit.Must(t, err)
	y := &story{Words: testkit.Words{Failer: t}, pools: map[string]*recorder{}, stop: map[string]func(){}}
	var url string
	switch {
	case strings.Contains(rules, "On a real Redis"): // the embedded one does not keep these numbers
		url = streamtest.Redis(t)
	case strings.Contains(rules, "On its own Redis"):
		y.server = streamtest.OwnRedis(t, "--maxmemory-policy", "noeviction")
		url = y.server.URL()
	default:
		url = anyRedis(t)
	}
	y.world = newWorldOf(t, url, 4, list.List()...)
	y.counter.Now = nil
	y.other = y.followed(counters.New(y.redis, y.keys))
	for _, step := range steps {
		if words, ok := strings.CutPrefix(step, "> "); ok {
			list, times := strings.Fields(words), int64(1)
			if n, err := strconv.ParseInt(list[0], 10, 64); err == nil {
				list, times = list[1:], n
			}
			for range times {
				y.run(slices.Clone(list))
			}
		}
	}
}

// story is one file that is being run.
type story struct {
	*world
	testkit.Words
	pools  map[string]*recorder
	stop   map[string]func()
	other  *overrides.All // of another process
	server *streamtest.Server
	ahead  *atomic.Int64 // of the clock; nil before the step clock
	put    []string      // IDs
	logged testkit.Log
	mark   int // how much of the log does not count
	nats   *decisions
	kept   string // the record of the step keep
}

func (y *story) followed(c *counters.Redis) *overrides.All {
	all := c.NewOverrides(nil)
	testkit.Must(y.t, all.Poll(y.t.Context()))
	return all
}

func (y *story) run(words []string) {
	y.t.Helper()
	ctx, step := y.t.Context(), words[0]
	for i, word := range words {
		words[i] = y.text(word)
	}
	of := append(slices.Clone(words[1:]), "", "", "", "")
	switch step {
	case "start":
		y.start(of[0], words[2:])
	case "stop":
		y.stop[of[0]]()
	case "clock":
		y.ahead = &atomic.Int64{}
		y.counter.Now = func() int64 { return time.Now().UnixMilli() + y.ahead.Load() }
	case "advance":
		y.ahead.Add(y.Duration(of[0]).Milliseconds())
	case "add":
		event := api.Event{Key: of[0], Count: y.Number(of[1]), ID: of[2]}
		y.eventually("an event is appended", func() (bool, string) { // Redis may just have come back
			out := y.log.Append(ctx, []api.Event{event})
			return out.Err == nil, fmt.Sprint(out.Err)
		})
	case "refused":
		if out := y.log.Append(ctx, []api.Event{{Key: of[0], Count: 1}}); out.Err == nil || len(out.Refused) != 1 {
			y.t.Errorf("an append: %+v", out)
		}
	case "put":
		y.entry(y.name(of[0], of[1]), words[3:])
	case "copy":
		for _, e := range y.redis.XRange(ctx, y.name(of[0], of[1]), "-", "+").Val() {
			again := &redis.XAddArgs{Stream: y.name(of[0], of[1]), Values: e.Values}
			testkit.Must(y.t, y.redis.XAdd(ctx, again).Err())
		}
	case "groups":
		testkit.Must(y.t, eventlog.NewReader(y.redis, y.keys, "x", y.keys.All()).CreateGroups(ctx))
	case "flush":
		testkit.Must(y.t, y.redis.ScriptFlush(ctx).Err())
	case "kill":
		y.server.Kill()
	case "restart":
		y.server.Start()
	case "memory":
		testkit.Must(y.t, y.redis.ConfigSet(ctx, "maxmemory", of[0]).Err())
	case "mark":
		y.eventually("no outage lasts", func() (bool, string) { // on a busy machine there may have been one
			text := y.logged.String()
			y.mark = len(text)
			return strings.Count(text, "Redis does not answer") == strings.Count(text, "Redis answers again"), text
		})
	case "read":
		dead := eventlog.NewReader(y.redis, y.keys, of[0], y.keys.All())
		testkit.Must(y.t, dead.CreateGroups(ctx))
		_, err := dead.Read(ctx, 100, -1)
		testkit.Must(y.t, err)
	case "die":
		y.readAndDie(of[0])
	case "trim":
		testkit.Must(y.t, y.redis.XTrimMaxLen(ctx, y.name("events", of[0]), y.Number(of[1])).Err())
	case "foreign":
		testkit.Must(y.t, y.redis.Set(ctx, y.name(of[0], of[1]), "not ours", 0).Err())
	case "delete":
		testkit.Must(y.t, y.redis.Del(ctx, y.name(of[0], of[1])).Err())
	case "block":
		one := api.Override{Key: of[0], Block: true}
		if strings.Contains(of[0], "*") {
			one.Key, one.Pattern = "", of[0]
		}
		y.operate(one, 0)
	case "unblock":
		_, err := y.other.Clear(ctx, "", of[0], "", "")
		testkit.Must(y.t, err)
	case "publish":
		testkit.Must(y.t, y.nats.js.Conn().Publish(y.subject(of[0], of[1]), []byte(strings.Join(words[3:], " "))))
	case "forge":
		y.forge(of[0], of[1], of[1], of[2])
	case "imitate":
		y.forge(of[0], of[1], of[2], of[3])
	case "purge":
		testkit.Must(y.t, y.nats.throttle.Purge(ctx, jetstream.WithPurgeSubject(y.subject(of[0], of[1]))))
	case "streams":
		throttle, alerted := alerts.StreamNames(y.keys.Prefix)
		testkit.Must(y.t, errors.Join(y.nats.js.DeleteStream(ctx, throttle), y.nats.js.DeleteStream(ctx, alerted)))
	case "keep":
		y.eventually("a level of "+of[1], func() (bool, string) {
			y.kept = y.redis.HGet(ctx, y.name("levels", of[0]), of[1]).Val()
			return y.kept != "", "none"
		})
	case "lose":
		y.lose(of[0], words[2:])
	case "limit":
		window := api.OverrideWindow{Limit: y.Number(of[1]), Per: of[2]}
		y.operate(api.Override{Key: of[0], Windows: []api.OverrideWindow{window}}, y.Duration(cmp.Or(of[3], "0s")))
	default:
		y.await(step, of, words[1:])
	}
}

// await waits until what a step says is true.
func (y *story) await(step string, of, words []string) {
	y.t.Helper()
	ctx := y.t.Context()
	switch step {
	case "used":
		y.eventuallyUsed(of[0], y.Number(of[1]))
	case "told":
		y.told(y.pools[of[0]], of[1], strings.Join(words[2:], " "))
	case "decision":
		y.eventuallyPublished(y.pools[of[0]], of[1], of[2], api.State(of[3]))
	case "found":
		y.awaitDecision(of[0], of[1], of[2], of[3] == "again")
	case "same":
		version, subject := y.found(of[0], of[1]).Version, y.subject(of[0], of[1])
		if first := cmp.Or(y.nats.first[subject], version); version == 0 || version != first {
			y.t.Errorf("the decision of %s by %s has the version %d, had %d", of[1], of[0], version, first)
		}
		y.nats.first[subject] = version
	case "kept": // a sweep that looks at the key ends the level, because its count is lost
		if now := y.redis.HGet(ctx, y.name("levels", of[0]), of[1]).Val(); now != y.kept && now != "" {
			y.t.Errorf("the record of %s is %q, was %q", of[1], now, y.kept)
		}
	case "attempts":
		want, r := strings.Join(words[1:], " "), y.pools[of[0]]
		y.eventually(step+": "+want, func() (bool, string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			is := strings.Join(r.tries, ", ")
			return is == want, is
		})
	case "copies":
		y.is(step, of[1], func() float64 {
			y.pools[of[0]].mu.Lock()
			defer y.pools[of[0]].mu.Unlock()
			return float64(y.pools[of[0]].copies)
		})
	case "metric":
		y.is(step+" "+of[0], of[1], func() float64 { return y.sample(of[0], of[2]) })
	case "length":
		y.is(step, of[2], func() float64 { return float64(y.redis.XLen(ctx, y.name(of[0], of[1])).Val()) })
	case "entry":
		y.is(step, of[3], func() float64 {
			return float64(len(y.redis.XRange(ctx, y.name(of[0], of[1]), of[2], of[2]).Val()))
		})
	case "exists":
		y.is(step, "1", func() float64 { return float64(y.redis.Exists(ctx, y.name(of[0], of[1])).Val()) })
	case "fields":
		y.is(step, of[2], func() float64 { return float64(y.redis.HLen(ctx, y.name(of[0], of[1])).Val()) })
	case "pending":
		y.is(step, of[0], func() float64 { return float64(y.pending()) })
	case "letters":
		y.is(step, of[1], func() float64 { return float64(len(y.dead(int(y.Number(of[0]))))) })
	case "letter":
		values := y.dead(int(y.Number(of[0])))[y.Number(of[1])].Values
		text := fmt.Sprint(values["event"], " ", values["reason"], values["body"])
		if !strings.Contains(text, strings.Join(words[2:], " ")) || len(text) > 4600 {
			y.t.Errorf("letter %v has %d bytes and says %s", words, len(text), text)
		}
	case "logged":
		says := regexp.MustCompile(strings.Join(words[1:], " "))
		y.is(step, of[0], func() float64 { return float64(len(says.FindAllString(y.logged.String()[y.mark:], -1))) })
	default:
		y.t.Fatalf("unknown step %q", step)
	}
}

// is waits until a number is as it should be.
func (y *story) is(what, want string, number func() float64) {
	y.t.Helper()
	streamtest.EventuallyIs(y.t, what, want, number)
}

func (y *story) start(pool string, settings []string) {
	y.t.Helper()
	down, own := slices.Contains(settings, "down"), y.followed(y.counter)
	y.pools[pool] = &recorder{down: down, fails: slices.Contains(settings, "fails")}
	y.stop[pool] = y.world.start(y.pools[pool], func(c *Config) {
		c.Log, c.Rules = slog.New(slog.NewTextHandler(&y.logged, nil)), windows.Under(own, c.Rules)
		if down {
			stopAtOnce(c)
		}
		if slices.Contains(settings, "nats") {
			y.nats = y.decisions()
			y.pools[pool].next, c.Decisions, c.CompareEvery = y.nats, y.nats, 120*time.Millisecond
		}
		for name, setting := range map[string]func(*redis.Options){"tight": streamtest.Tight, "slow": streamtest.Slow} {
			if slices.Contains(settings, name) {
				c.Redis, c.Blocking = streamtest.Connect(y.t, y.url, setting), streamtest.Connect(y.t, y.url, setting)
			}
		}
		for _, one := range settings {
			name, value, _ := strings.Cut(one, "=")
			for known, to := range map[string]*time.Duration{"min-idle": &c.MinIdle, "lock": &c.LockTTL,
				"quarantine": &c.QuarantineFor} {
				if name == known {
					*to = y.Duration(value)
				}
			}
		}
	})
	go own.Run(y.t.Context())
}

func (y *story) entry(stream string, words []string) {
	y.t.Helper()
	id, given := strings.CutPrefix(words[0], "id=")
	switch {
	case !given:
		id = "*"
	case id == "now":
		id = fmt.Sprintf("%d-*", y.counter.Now())
	}
	if given {
		words = words[1:]
	}
	for i, word := range words {
		if text, err := strconv.Unquote(word); err == nil {
			words[i] = text
		}
		if letter, n, found := strings.Cut(word, "*"); found && len(letter) == 1 {
			words[i] = strings.Repeat(letter, int(y.Number(n)))
		}
	}
	id, err := y.redis.XAdd(y.t.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: words}).Result()
	testkit.Must(y.t, err)
	y.put = append(y.put, id)
}

// lose deletes the levels and overrides of a partition, and the counters of keys, of which the last is the kept one.
func (y *story) lose(p string, keys []string) {
	y.t.Helper()
	names := []string{y.name("levels", p), y.name("due", p), y.name("overrides", p)}
	for _, key := range keys {
		for _, form := range lua.Forms() {
			names = append(names, y.keys.Counter(int(y.Number(p)), form, key))
		}
	}
	testkit.Must(y.t, y.redis.Del(y.t.Context(), names...).Err())
	testkit.Must(y.t, y.redis.HSet(y.t.Context(), y.name("levels", p), keys[len(keys)-1], y.kept).Err())
}

// operate sets an override in another process.
func (y *story) operate(one api.Override, lasts time.Duration) {
	y.t.Helper()
	_, err := y.other.Set(y.t.Context(), y.rules.ValidateOverride, one, lasts)
	testkit.Must(y.t, err)
}

// name returns the name of one of a partition's keys.
func (y *story) name(what, partition string) string {
	p, k := int(y.Number(partition)), y.keys
	return map[string]string{"events": k.Events(p), "outbox": k.Outbox(p), "levels": k.Levels(p), "due": k.Due(p),
		"ids": k.IDs(p), "dead": k.Dead(p), "relay": k.Relay(p), "overrides": k.Overrides(p)}[what]
}

// text returns a word of a step, or the key or ID that it means.
func (y *story) text(word string) string {
	if n, found := strings.CutPrefix(word, "$"); found {
		return y.put[y.Number(n)-1]
	}
	if p, name, found := strings.Cut(word, "/"); found && len(p) == 1 {
		if name == "long" { // its subject has a hash
			name = strings.Repeat("long", 80)
		}
		return y.keyIn(int(y.Number(p)), name)
	}
	return word
}

// readAndDie appends an event that another worker reads and never folds.
func (w *world) readAndDie(key string) {
	w.t.Helper()
	ctx, events := w.t.Context(), w.keys.Events(w.keys.Partition(key))
	_, err := w.redis.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", key}})
		tx.XReadGroup(ctx, &redis.XReadGroupArgs{Group: eventlog.Group, Consumer: "dead",
			Streams: []string{events, ">"}, Block: -1})
		return nil
	})
	testkit.Must(w.t, err)
}

func (w *world) eventuallyPublished(r *recorder, key string, rule string, state api.State) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s is %s by %s", key, state, rule), func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		last := api.Transition{}
		for _, one := range r.all {
			if one.Key == key && one.Rule == rule && one.IsThrottle() {
				last = one
			}
		}
		return last.State == state, fmt.Sprintf("%+v", last)
	})
}
