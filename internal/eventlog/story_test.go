package eventlog_test

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// A story is a file of testdata: a text, a line of dashes, and steps with their results. A number before a step repeats
// it. An event is called P:KEY, of partition P; $KEY is its ID.
//
//	put P KEY [ago=AGE] [FIELD VALUE...]  a producer appends an event
//	many P N BYTES                        it appends N events of this size; their keys are numbers
//	groups W [tight|slow|patient]         a worker creates the groups; its connection ends at large replies, or waits
//	read W [N]                            it reads new events, up to N of each partition
//	wait W, answer                        it waits for new events in a read; what the read brings
//	claim W P IDLE [N], own W P           it claims pending events, and those of its own, where the last claim ended
//	pend W                                the partitions that may have pending events
//	backlog P [tight]                     the events that are not counted yet
//	count P N                             a worker reads N events and counts them
//	gap P                                 how many events are missing, which is reported once
//	bury P ID REASON, letters P           an event becomes a dead letter; the reasons of all letters
//	lock WHO DURATION                     the partitions whose lock a relay holds then
//	retire P W                            a worker leaves the group, unless it holds events
//	workers P                             the workers in the group, and how many events each holds
//	redis COMMAND...                      a command, in which P/NAME is a key of a partition
//	ask COMMAND...                        the same, with the reply
//	ends P/NAME                           how long a key lasts, in minutes
//
// go test ./internal/eventlog -run Stories -update writes the results. A reviewer reads them.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, above string, steps []string) (out []string) {
		run := func(t *testing.T, c *redis.Client) {
			told := tell(t, c, steps)
			if diff := gocmp.Diff(out, told); out != nil && diff != "" {
				t.Errorf("-before, on another Redis +here:\n%s", diff)
			}
			out = told
		}
		switch {
		case strings.HasSuffix(above, "On a real Redis."): // the embedded one does not have these numbers
			run(t, streamtest.Connect(t, streamtest.Redis(t)))
		case strings.HasSuffix(above, "On its own Redis."):
			run(t, streamtest.Connect(t, streamtest.OwnRedis(t).Addr()))
		default:
			streamtest.EachRedis(t, run)
		}
		return out
	})
}

// story is one file that is being run.
type story struct {
	testkit.Words
	t       *testing.T
	redis   *redis.Client
	keys    *stream.Keys
	readers map[string]*eventlog.Reader
	ids     map[string]string  // key → ID
	many    int                // the events of steps many
	cursor  string             // where the last claim ended
	answer  chan func() string // of the step wait
}

func tell(t *testing.T, c *redis.Client, steps []string) (out []string) {
	y := &story{Words: testkit.Words{Failer: t}, t: t, redis: c, keys: streamtest.Keys(t, 5),
		readers: map[string]*eventlog.Reader{}, ids: map[string]string{}, cursor: "0-0",
		answer: make(chan func() string, 1)}
	for _, line := range steps {
		step, ok := strings.CutPrefix(line, "> ")
		if strings.HasPrefix(line, "< ") {
			continue
		}
		if out = append(out, line); !ok {
			continue
		}
		words, times := strings.Fields(step), int64(1)
		if n, err := strconv.ParseInt(words[0], 10, 64); err == nil {
			words, times = words[1:], n
		}
		for range times {
			for line := range strings.SplitSeq(y.run(words[0], append(words[1:], "", "")), "\n") {
				if line != "-" {
					out = append(out, "< "+line)
				}
			}
		}
	}
	return out
}

// run runs a step, and returns its result; "-" if it has none.
func (y *story) run(step string, of []string) string {
	y.t.Helper()
	ctx, words := y.t.Context(), of[:len(of)-2]
	switch step {
	case "put":
		id, fields := "*", words[2:]
		if ago, found := strings.CutPrefix(of[2], "ago="); found {
			id, fields = fmt.Sprintf("%d-*", y.redis.Time(ctx).Val().Add(-y.Duration(ago)).UnixMilli()), words[3:]
		}
		y.put(of[0], id, fields, of[1])
	case "many":
		var keys []string
		for range y.number(of[1]) {
			y.many++
			keys = append(keys, strconv.Itoa(y.many))
		}
		y.put(of[0], "*", []string{"pad", strings.Repeat("x", y.number(of[2]))}, keys...)
	case "groups":
		y.readers[of[0]] = eventlog.NewReader(y.connection(of[1]), y.keys, of[0], y.keys.All())
		return y.said("-", y.readers[of[0]].CreateGroups(ctx))
	case "read":
		batches, err := y.readers[of[0]].Read(ctx, y.number(cmp.Or(of[1], "100")), -1)
		return y.said("nothing", err, batches...)
	case "wait":
		go func() {
			batches, err := y.readers[of[0]].Read(ctx, 100, time.Minute)
			y.answer <- func() string { return y.said("nothing", err, batches...) }
		}()
		streamtest.Eventually(y.t, "a reader waits", func() (bool, string) {
			info := y.redis.Info(ctx, "clients").Val()
			return strings.Contains(info, "blocked_clients:1"), info
		})
	case "answer":
		return (<-y.answer)()
	case "claim":
		batch, next, err := y.readers[of[0]].Claim(ctx, y.number(of[1]), y.Duration(of[2]), y.cursor,
			y.number(cmp.Or(of[3], "100")))
		return y.claimed(batch, next, err)
	case "own":
		return y.claimed(y.readers[of[0]].Own(ctx, y.number(of[1]), y.cursor))
	case "pend":
		return fmt.Sprint(y.readers[of[0]].MayPend(ctx, y.keys.All()))
	case "backlog":
		list, err := eventlog.Backlogs(ctx, y.connection(of[1]), y.keys)
		b := list[y.number(of[0])]
		if b.NowMs == 0 && b.Oldest == 0 {
			return y.said("nothing", err)
		}
		return y.said(fmt.Sprintf("unread %v, the oldest for %v, %d pending", b.Unread, b.Oldest.Truncate(time.Minute),
			b.Pending), err)
	case "redis", "ask":
		reply, err := y.redis.Do(ctx, y.arguments(words)...).Result()
		testkit.Must(y.t, err)
		if step == "ask" {
			return fmt.Sprint(reply)
		}
	case "ends":
		return fmt.Sprint("in ", y.redis.PTTL(ctx, y.arguments(words)[0].(string)).Val().Round(time.Minute))
	case "lock":
		locks := []string{y.keys.Relay(0), y.keys.Relay(1)}
		r := lua.NewCaller(y.redis).Call(ctx, step, nil, locks, of[0], y.Duration(of[1]).Milliseconds())
		return y.said(fmt.Sprint(r.Flags(len(locks))), r.End())
	default:
		return y.operate(step, of)
	}
	return "-"
}

// operate calls an operation of a partition.
func (y *story) operate(step string, of []string) string {
	y.t.Helper()
	p := y.number(of[0])
	partition := []string{y.keys.Events(p), y.keys.Dead(p), y.keys.Levels(p)}
	call := func(op string, keys []string, args ...any) *lua.Reply {
		return lua.NewCaller(y.redis).Call(y.t.Context(), op, nil, keys, args...)
	}
	switch step {
	case "retire":
		r := call(step, partition[:1], eventlog.Group, of[1], 0)
		return y.said(fmt.Sprint(r.Integer()), r.End())
	case "count":
		reader := eventlog.NewReader(y.redis, y.keys, "counts", []int{p})
		batches, err := reader.Read(y.t.Context(), y.number(of[1]), -1)
		testkit.Must(y.t, err)
		letters := []any{eventlog.Group, 0}
		for _, m := range batches[0].Messages {
			letters = append(letters, m.ID, "", "", false)
		}
		return y.said("-", call("deadletter", partition, letters...).Err())
	case "bury":
		r := call("deadletter", partition, eventlog.Group, 10, y.arguments(of[1:2])[0], of[2], "", false)
		return y.said(fmt.Sprint(r.Flags(1)), r.End())
	case "gap":
		first, second := call(step, partition, eventlog.Group, 10), call(step, partition, eventlog.Group, 10)
		n, again := first.Integer(), second.Integer()
		return y.said(fmt.Sprintf("%d, then %d", n, again), errors.Join(first.End(), second.End()))
	case "letters":
		letters, err := y.redis.XRange(y.t.Context(), y.keys.Dead(p), "-", "+").Result()
		var reasons []string
		for _, m := range letters {
			reasons = append(reasons, m.Values["reason"].(string))
		}
		return y.said(y.named(strings.Join(reasons, "\n")), err)
	case "workers":
		list, err := y.redis.XInfoConsumers(y.t.Context(), y.keys.Events(p), eventlog.Group).Result()
		var pending []string
		for _, w := range list {
			pending = append(pending, fmt.Sprintf("%s %d", w.Name, w.Pending))
		}
		return y.said(strings.Join(pending, ", "), err)
	}
	y.t.Fatalf("unknown step %q", step)
	return ""
}

func (y *story) connection(limit string) *redis.Client {
	limits := map[string]func(*redis.Options){"tight": streamtest.Tight, "slow": streamtest.Slow,
		"patient": func(o *redis.Options) { o.ReadTimeout = time.Minute }}
	if change := limits[limit]; change != nil {
		return streamtest.Connect(y.t, y.redis.Options().Addr, change)
	}
	return y.redis
}

// put appends an event of each key.
func (y *story) put(p, id string, fields []string, keys ...string) {
	y.t.Helper()
	added, err := y.redis.Pipelined(y.t.Context(), func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.XAdd(y.t.Context(), &redis.XAddArgs{Stream: y.keys.Events(y.number(p)), ID: id,
				Values: slices.Concat([]string{"key", key}, fields)})
		}
		return nil
	})
	testkit.Must(y.t, err)
	for i, key := range keys {
		y.ids[key] = added[i].(*redis.StringCmd).Val()
	}
}

// claimed returns what a claim has brought, and remembers where it ended.
func (y *story) claimed(b eventlog.Batch, next string, err error) string {
	more := map[bool]string{true: ", and there are more"}[next != "0-0" && err == nil]
	y.cursor = cmp.Or(next, "0-0")
	return y.said("nothing", err, b) + more
}

// said returns the events of batches: each, or how many there are. Without any it returns other, or which error it was.
func (y *story) said(other string, err error, batches ...eventlog.Batch) string {
	switch {
	case errors.Is(err, eventlog.ErrReplyLost):
		return "the reply was lost"
	case redisclient.IsWrongType(err):
		return "WRONGTYPE"
	}
	testkit.Must(y.t, err)
	var events []string
	slices.SortFunc(batches, func(a, b eventlog.Batch) int { return a.Partition - b.Partition })
	for _, b := range batches {
		for _, m := range b.Messages {
			text := fmt.Sprintf("%d:", b.Partition)
			switch e, err := m.Decode(); {
			case err != nil:
				text += "too-large"
			case e.ID != "":
				text += fmt.Sprintf("%s of the count %d and the id %s", e.Key, e.Count, e.ID)
			default:
				text += e.Key
			}
			events = append(events, text)
		}
	}
	if n := len(events); n > 5 {
		return fmt.Sprintf("%s to %s, %d events", events[0], events[n-1], n)
	}
	return cmp.Or(strings.Join(events, ", "), other)
}

// arguments returns the words of a command with the names of keys and the IDs that they mean.
func (y *story) arguments(words []string) (list []any) {
	for _, word := range words {
		if p, name, found := strings.Cut(word, "/"); found {
			word = fmt.Sprintf("%s:{%s}:%s", y.keys.Prefix, p, name)
		}
		if key, found := strings.CutPrefix(word, "$"); found {
			word = y.ids[key]
		}
		list = append(list, word)
	}
	return list
}

// named returns a text with the keys of events in place of their IDs.
func (y *story) named(text string) string {
	return regexp.MustCompile(`\d+-\d+`).ReplaceAllStringFunc(text, func(id string) string {
		for key, one := range y.ids {
			if one == id {
				return key
			}
		}
		return id
	})
}

func (y *story) number(text string) int { return int(y.Number(text)) }

func TestMain(m *testing.M) { streamtest.Main(m) }

func TestShards(t *testing.T) {
	k := streamtest.Keys(t, 3)
	one := streamtest.Connect(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	for _, c := range []struct {
		client redis.UniversalClient
		want   [][]int
	}{{one, [][]int{{0, 1, 2}}}, {cluster, [][]int{{0}, {1}, {2}}}} {
		if got := eventlog.Shards(c.client, k.All()); !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%T: shards %v, want %v", c.client, got, c.want)
		}
	}
}
