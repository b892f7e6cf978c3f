package counters_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	// cockroachdb/datadriven: stories as text files, rewritten by a flag; etcd's raft is tested with it.
	"github.com/cockroachdb/datadriven"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// TestStories runs each file of testdata/stories on the embedded and on a real
// Redis. A file is a sequence of commands, each with its output below ----:
// its result, then the transitions that it wrote to the outbox. Times are
// relative to the story's start. No two transitions of a story may share an id, and
// the versions of a rule and key only increase. `go test ./internal/counters -run Stories -rewrite`
// writes the results; read the difference before you commit it.
//
//	rules                       the rules from now on, as YAML
//	add KEY COUNT [@TIME]       a producer appends an event (TIME as 9s; default now); user=NAME is a value of it
//	work WORKER                 the worker reads all new events and folds them
//	crash WORKER                the worker reads all new events, and stops before it folds them
//	wake WORKER                 a stopped worker continues: it folds the events that it had read
//	reclaim WORKER              the worker takes over the pending events of others, and folds them
//	check KEY [COST]            a caller checks the key; user=NAME is a value of it
//	peek KEY                    the state of the key
//	refund KEY UNITS            units are given back
//	reset KEY                   the key is reset
//	advance DURATION            time passes, and due keys are swept
//	step DURATION               Redis's clock steps, also back; nothing is swept
//	recheck                     every key that has reached a level is swept, as after a reload
//	sweep KEY                   the key is swept, whether it is due or not
//	due KEY                     when the key is due to be swept, and whether it has a record of levels
//	clear                       Redis is empty again
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		bothWays(t, nil, func(t *testing.T, s *store) {
			y := &story{t: t, store: s, held: map[string][]eventlog.Batch{}}
			datadriven.RunTest(t, path, y.run)
		})
	})
}

// story is one file that is being run.
type story struct {
	t *testing.T
	*store
	held map[string][]eventlog.Batch // worker → the events that it has read and not folded
}

func (y *story) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	arg := func(i int) string {
		if i >= len(d.CmdArgs) {
			d.Fatalf(t, "%s: argument %d is missing", d.Cmd, i+1)
		}
		return d.CmdArgs[i].String()
	}
	user := ""
	if i := slices.IndexFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "user" }); i >= 0 {
		user = d.CmdArgs[i].Vals[0]
		d.CmdArgs = slices.Delete(d.CmdArgs, i, i+1)
	}
	var out string
	switch d.Cmd {
	case "rules":
		out = y.setRules(d.Input)
	case "add":
		at := y.clock.ms
		if len(d.CmdArgs) > 2 {
			at = start + y.duration(strings.TrimPrefix(arg(2), "@"))
		}
		y.add(arg(0), y.number(arg(1)), at, user)
	case "work":
		out = y.fold(y.read(arg(0)))
	case "crash":
		y.held[arg(0)] = y.read(arg(0))
		out = fmt.Sprintf("%d read", count(y.held[arg(0)]))
	case "wake":
		out = y.fold(y.held[arg(0)])
	case "reclaim":
		out = y.fold(y.claim(arg(0)))
	case "check":
		cost := int64(1)
		if len(d.CmdArgs) > 1 {
			cost = y.number(arg(1))
		}
		out = y.check(arg(0), cost, user)
	case "peek":
		out = y.peek(arg(0))
	case "refund":
		given, _, err := y.store.store.Refund(context.Background(), y.rules.Match(arg(0)), arg(0), y.number(arg(1)))
		testkit.Must(t, err)
		out = fmt.Sprintf("%d given back", given)
	case "reset":
		_, err := y.Reset(context.Background(), y.rules.Match(arg(0)), arg(0))
		testkit.Must(t, err)
	case "advance":
		y.clock.ms += y.duration(arg(0))
		y.sweep(t)
	case "step":
		y.clock.ms += y.duration(arg(0))
	case "recheck":
		y.recheck()
	case "sweep":
		_, _, err := y.store.store.Sweep(t.Context(), y.keys.Partition(arg(0)), y.rules, []string{arg(0)})
		testkit.Must(t, err)
	case "due":
		out = y.due(arg(0))
	case "clear":
		y.clear()
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	lines := []string{}
	if out != "" {
		lines = append(lines, out)
	}
	lines = append(lines, y.published()...)
	if len(lines) == 0 {
		return "ok\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func (y *story) setRules(yaml string) string {
	rules, err := windows.Parse("rules.yml", []byte(yaml))
	if err != nil {
		return err.Error()
	}
	y.rules = rules
	testkit.Must(y.t, y.learn())
	return ""
}

func (y *story) add(key string, n, ms int64, user string) {
	name, values := y.keys.Events(y.keys.Partition(key)), []any{"key", key, "count", n}
	if user != "" {
		values = append(values, "user", user)
	}
	testkit.Must(y.t, y.redis.XAdd(context.Background(), &redis.XAddArgs{
		Stream: name, ID: fmt.Sprintf("%d-*", ms), Values: values,
	}).Err())
}

// read reads all new events of every partition, as a worker does.
func (y *story) read(worker string) (all []eventlog.Batch) {
	ctx := context.Background()
	for p := range y.keys.Partitions {
		r := eventlog.NewReader(y.reader, y.keys, worker, []int{p})
		testkit.Must(y.t, r.CreateGroups(ctx))
		batches, err := r.Read(ctx, 10_000, -1)
		testkit.Must(y.t, err)
		all = append(all, batches...)
	}
	return all
}

func (y *story) claim(worker string) (all []eventlog.Batch) {
	for p := range y.keys.Partitions {
		r := eventlog.NewReader(y.reader, y.keys, worker, []int{p})
		b, _, err := r.Claim(context.Background(), p, 0, "0-0", 10_000)
		testkit.Must(y.t, err)
		all = append(all, b)
	}
	return all
}

func (y *story) fold(batches []eventlog.Batch) string {
	var folds []counters.Batch
	for _, b := range batches {
		fold := counters.Batch{Partition: b.Partition}
		for _, m := range b.Messages {
			e, err := m.Decode()
			testkit.Must(y.t, err)
			fold.Events = append(fold.Events, counters.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count,
				ProducerID: e.ID, Fields: m.Values})
		}
		folds = append(folds, fold)
	}
	sum := y.foldBatches(y.t, folds)
	out := fmt.Sprintf("%d folded", sum.Folded)
	if sum.Late > 0 {
		out += fmt.Sprintf(", %d late", sum.Late)
	}
	if sum.AlreadyCounted > 0 {
		out += fmt.Sprintf(", %d already counted", sum.AlreadyCounted)
	}
	return out
}

func count(batches []eventlog.Batch) (n int) {
	for _, b := range batches {
		n += len(b.Messages)
	}
	return n
}

func (y *story) check(key string, cost int64, user string) string {
	plan := y.rules.Match(key)
	values, err := plan.Values(func(string) string { return user })
	testkit.Must(y.t, err)
	v, err := y.Check(context.Background(), []counters.Request{{Plan: plan, Key: key, Cost: cost, Values: values}})
	testkit.Must(y.t, err)
	said := verdict("allowed", "denied", v.Items[0].RetryAfter)
	for i, s := range v.Items[0].Shadows {
		said += "; " + plan.Shadows[i].Name + verdict(" would allow", " would deny", s.RetryAfter)
	}
	return said + "; " + standing(plan, v.Items[0])
}

func verdict(allowed, denied string, wait time.Duration) string {
	switch {
	case wait == 0:
		return allowed
	case wait < 0:
		return denied + " for ever"
	default:
		return denied + ", retry after " + wait.String()
	}
}

func (y *story) peek(key string) string {
	plan := y.rules.Match(key)
	st, err := y.Peek(context.Background(), plan, key)
	testkit.Must(y.t, err)
	return standing(plan, st)
}

func standing(plan *windows.Plan, st windows.KeyState) string {
	var parts []string
	add := func(rule *windows.Rule, s windows.KeyState, what string) {
		for i, w := range rule.Windows {
			parts = append(parts, fmt.Sprintf("%d of %d per %s%s", s.Windows[i].Used, w.Limit, perOf(w), what))
		}
	}
	if plan.Live != nil {
		add(plan.Live, st, "")
	}
	for i, s := range st.Shadows {
		add(plan.Shadows[i], s, " ("+plan.Shadows[i].Name+")")
	}
	return strings.Join(parts, ", ")
}

func (y *story) recheck() {
	ctx := context.Background()
	for p := range y.keys.Partitions {
		keys, err := y.store.store.Levelled(ctx, p)
		testkit.Must(y.t, err)
		_, _, err = y.store.store.Sweep(ctx, p, y.rules, keys)
		testkit.Must(y.t, err)
	}
}

// due returns when a key is due to be swept, and whether it has a record.
func (y *story) due(key string) string {
	p := y.keys.Partition(key)
	out := "never"
	if in := (tale{y.t, y.store}).due(key); in >= 0 {
		out = "in " + (time.Duration(in) * time.Millisecond).String()
	}
	if y.redis.HExists(context.Background(), y.keys.Levels(p), key).Val() {
		out += ", with a record"
	}
	return out
}

func (y *story) clear() {
	ctx := context.Background()
	names, err := y.redis.Keys(ctx, y.keys.Prefix+":*").Result()
	testkit.Must(y.t, err)
	testkit.Must(y.t, y.redis.Del(ctx, names...).Err())
	y.ids, y.versions = map[string]bool{}, map[string]int64{}
}

// published empties the outboxes: a line per transition.
func (y *story) published() (lines []string) {
	ctx := context.Background()
	for p := range y.keys.Partitions {
		list, err := y.redis.XRange(ctx, y.keys.Outbox(p), "-", "+").Result()
		testkit.Must(y.t, err)
		for _, m := range list {
			v := func(name string) string { return m.Values[name].(string) }
			per := time.Duration(y.number(v("window"))) * time.Millisecond
			line := fmt.Sprintf("%s %s%% %s by %s: %s of %s per %s, since %s, until %s", v("state"), v("level"),
				v("key"), v("rule"),
				v("used"), v("limit"), per, y.relative(v("since")), y.relative(v("until")))
			if at := y.number(v("at")); at != y.clock.ms {
				line += ", at " + y.relative(v("at"))
			}
			flags := v("flags")
			if strings.Contains(flags, "s") {
				line += ", shadow"
			}
			if strings.Contains(flags, "r") {
				line += ", renewed"
			}
			lines = append(lines, line)
			y.isNew(y.t, m.Values)
		}
		testkit.Must(y.t, y.redis.Del(ctx, y.keys.Outbox(p)).Err())
	}
	return lines
}

func (y *story) relative(ms string) string {
	return (time.Duration(y.number(ms)-start) * time.Millisecond).String()
}

func (y *story) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	testkit.Must(y.t, err)
	return n
}

// duration reads a duration in ms; it may be below zero.
func (y *story) duration(s string) int64 {
	d, err := time.ParseDuration(s)
	testkit.Must(y.t, err)
	return d.Milliseconds()
}

func perOf(w windows.Window) string {
	if w.Calendar.Unit != "" {
		return w.Calendar.String()
	}
	return w.Per.String()
}
