package consumers_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: rules, a line of dashes, and steps. Steps of the second list wait until they are true.
// P/NAME is a key of partition P that begins with user:NAME. "TEXT" in an entry has the escapes of Go.
//
//	start POOL [down] [SETTING=DURATION...]  a pool starts; its publisher may be down
//	stop POOL                                it stops cleanly
//	add KEY COUNT [ID]                       a producer appends an event
//	put STREAM P [id=ID] FIELD VALUE...      an entry is added to a stream of a partition as it is
//	read WORKER                              a worker reads all new events, and dies
//	die KEY                                  an event is appended, which a worker reads that dies; no pool reads it first
//	trim P N                                 the events of a partition are trimmed to N
//	foreign NAME P                           a string replaces one of a partition's keys
//	delete NAME P                            one of a partition's keys is deleted
//	block PATTERN, unblock PATTERN           an operator sets or clears a block
//	limit KEY LIMIT PER [FOR]                an operator sets a limit
//
//	used KEY N                               how much the key has used
//	told POOL KEY [TRANSITION, ...]          which transitions the pool has published
//	decision POOL KEY RULE STATE             the last decision that the pool has published
//	metric NAME N [LABEL]                    the sum of a metric; >N: it is above N
//	pending N                                how many events are pending
//	waiting P N                              how many transitions are in an outbox
//	exists NAME P                            a partition has a key
//	fields NAME P N                          how many fields one of a partition's hashes has
//	letters P N                              how many dead letters a partition has
//	letter P I TEXT                          what is in dead letter I
//	logged N TEXT                            how often the log says something
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
	url := anyRedis(t)
	if strings.Contains(rules, "On a real Redis") { // the embedded one does not keep these numbers
		url = streamtest.Redis(t)
	}
	y := &story{world: newWorldOf(t, url, 4, list.List()...), pools: map[string]*recorder{},
		stop: map[string]func(){}}
	y.counter.Now = nil
	y.other = y.followed(counters.New(y.redis, y.keys))
	for _, step := range steps {
		if words, ok := strings.CutPrefix(step, "> "); ok {
			y.run(strings.Fields(words))
		}
	}
}

// story is one file that is being run.
type story struct {
	*world
	pools  map[string]*recorder
	stop   map[string]func()
	other  *overrides.All // of another process
	logged testkit.Log
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
	case "add":
		y.append(api.Event{Key: of[0], Count: y.number(of[1]), ID: of[2]})
	case "put":
		y.put(y.name(of[0], of[1]), words[3:])
	case "read":
		dead := eventlog.NewReader(y.redis, y.keys, of[0], y.keys.All())
		testkit.Must(y.t, dead.CreateGroups(ctx))
		_, err := dead.Read(ctx, 100, -1)
		testkit.Must(y.t, err)
	case "die":
		y.readAndDie(of[0])
	case "trim":
		testkit.Must(y.t, y.redis.XTrimMaxLen(ctx, y.name("events", of[0]), y.number(of[1])).Err())
	case "foreign":
		testkit.Must(y.t, y.redis.Set(ctx, y.name(of[0], of[1]), "not ours", 0).Err())
	case "delete":
		testkit.Must(y.t, y.redis.Del(ctx, y.name(of[0], of[1])).Err())
	case "block":
		y.operate(api.Override{Pattern: of[0], Block: true}, 0)
	case "unblock":
		_, err := y.other.Clear(ctx, "", of[0], "", "")
		testkit.Must(y.t, err)
	case "limit":
		window := api.OverrideWindow{Limit: y.number(of[1]), Per: of[2]}
		y.operate(api.Override{Key: of[0], Windows: []api.OverrideWindow{window}}, y.duration(cmp.Or(of[3], "0s")))
	default:
		y.await(step, of, words[1:])
	}
}

// await waits until what a step says is true.
func (y *story) await(step string, of, words []string) {
	y.t.Helper()
	switch step {
	case "used":
		y.eventuallyUsed(of[0], y.number(of[1]))
	case "told":
		y.told(y.pools[of[0]], of[1], strings.Join(words[2:], " "))
	case "decision":
		y.eventuallyPublished(y.pools[of[0]], of[1], of[2], api.State(of[3]))
	case "metric":
		n, above := strings.CutPrefix(of[1], ">")
		y.eventually("the metric "+of[0]+" is "+of[1], func() (bool, string) {
			is, want := y.sampleOf(of[0], of[2]), float64(y.number(n))
			return is == want || above && is > want, fmt.Sprint(is)
		})
	case "waiting":
		y.waiting(int(y.number(of[0])), y.number(of[1]))
	case "exists":
		y.is(step, 1, func() int64 { return y.redis.Exists(y.t.Context(), y.name(of[0], of[1])).Val() })
	case "fields":
		y.is(step, y.number(of[2]), func() int64 { return y.redis.HLen(y.t.Context(), y.name(of[0], of[1])).Val() })
	case "pending":
		y.is(step, y.number(of[0]), y.pending)
	case "letters":
		y.is(step, y.number(of[1]), func() int64 { return int64(len(y.dead(int(y.number(of[0]))))) })
	case "letter":
		values := y.dead(int(y.number(of[0])))[y.number(of[1])].Values
		if text := fmt.Sprint(values["reason"], values["body"]); !strings.Contains(text, strings.Join(words[2:], " ")) {
			y.t.Errorf("letter %v says %s", words, text)
		}
	case "logged":
		y.is(step, y.number(of[0]), func() int64 {
			return int64(strings.Count(y.logged.String(), strings.Join(words[1:], " ")))
		})
	default:
		y.t.Fatalf("unknown step %q", step)
	}
}

// is waits until a number is as it should be.
func (y *story) is(what string, want int64, number func() int64) {
	y.t.Helper()
	y.eventually(fmt.Sprintf("%s: %d", what, want), func() (bool, string) {
		n := number()
		return n == want, fmt.Sprint(n)
	})
}

func (y *story) start(pool string, settings []string) {
	y.t.Helper()
	down, own := slices.Contains(settings, "down"), y.followed(y.counter)
	y.pools[pool] = &recorder{down: down}
	y.stop[pool] = y.world.start(y.pools[pool], func(c *consumers.Config) {
		c.Log, c.Rules = slog.New(slog.NewTextHandler(&y.logged, nil)), windows.Under(own, c.Rules)
		if down {
			stopAtOnce(c)
		}
		for _, one := range settings {
			name, value, _ := strings.Cut(one, "=")
			for known, to := range map[string]*time.Duration{"min-idle": &c.MinIdle, "lock": &c.LockTTL,
				"quarantine": &c.QuarantineFor} {
				if name == known {
					*to = y.duration(value)
				}
			}
		}
	})
	go own.Run(y.t.Context())
}

func (y *story) put(stream string, words []string) {
	y.t.Helper()
	id, given := strings.CutPrefix(words[0], "id=")
	if given {
		words = words[1:]
	} else {
		id = "*"
	}
	for i, word := range words {
		if text, err := strconv.Unquote(word); err == nil {
			words[i] = text
		}
	}
	testkit.Must(y.t, y.redis.XAdd(context.Background(), &redis.XAddArgs{Stream: stream, ID: id, Values: words}).Err())
}

// operate sets an override in another process.
func (y *story) operate(one api.Override, lasts time.Duration) {
	y.t.Helper()
	_, err := y.other.Set(y.t.Context(), y.rules.ValidateOverride, one, lasts)
	testkit.Must(y.t, err)
}

// name returns the name of one of a partition's keys.
func (y *story) name(what, partition string) string {
	p, k := int(y.number(partition)), y.keys
	return map[string]string{"events": k.Events(p), "outbox": k.Outbox(p), "levels": k.Levels(p), "due": k.Due(p),
		"ids": k.IDs(p), "dead": k.Dead(p), "relay": k.Relay(p), "overrides": k.Overrides(p)}[what]
}

// text returns a word of a step, or the key that it means.
func (y *story) text(word string) string {
	if p, name, found := strings.Cut(word, "/"); found && len(p) == 1 {
		return y.keyIn(int(y.number(p)), name)
	}
	return word
}

func (y *story) number(text string) int64 {
	y.t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	testkit.Must(y.t, err)
	return n
}

func (y *story) duration(text string) time.Duration {
	y.t.Helper()
	d, err := time.ParseDuration(text)
	testkit.Must(y.t, err)
	return d
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
