package counters_test

import (
	gocmp "cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: rules, a line of dashes, and what happens under them, one step a line:
//
//	> STEP    a step
//	< RESULT  its result, and the transitions that it wrote to the outbox
//
// Times are relative to the story's start. No two transitions of a story may share an id, and the versions of a rule
// and key only increase. Results are written by go test ./internal/counters -run Stories -update, and read in review.
//
//	rules                       the rules from now on, in the lines that follow
//	add KEY COUNT [@TIME]       a producer appends an event (TIME as 9s; default now); user=NAME or id=ID is a value
//	                            of it, in which _ is a space
//	work WORKER                 the worker reads all new events and folds them
//	crash WORKER                the worker reads all new events, and stops before it folds them
//	wake WORKER                 a stopped worker continues: it folds the events that it had read
//	reclaim WORKER              the worker takes over the pending events of others, and folds them
//	check KEY [COST]            a caller checks the key; user=NAME is a value of it; look: charges nothing
//	run CHECK; CHECK...         callers check at the same time; each CHECK is as above, without the word check
//	bring KEY LIMIT [COST]      a caller checks the key under a limit per 10 s that it brings itself
//	peek KEY                    the state of the key
//	refund KEY UNITS [LIMIT]    units are given back, under a limit that the caller brings, if it has one
//	reset KEY                   the key is reset
//	reserve ID UNITS TTL KEY... units of each key are reserved
//	commit ID COST              a reservation is committed, with the cost of each key
//	cancel ID                   a reservation is cancelled
//	renew ID TTL                a reservation is renewed
//	lease KEY UNITS TTL [USED [KEEP]]
//	                            units of the key are leased, or the lease is renewed: of its units, some were used
//	override KEY WHAT           exempt, a tier, or a limit as 60/2s alone, until override KEY none
//	advance DURATION            time passes, and due keys are swept
//	step DURATION               Redis's clock steps, also back; nothing is swept
//	recheck                     every key that has reached a level is swept, as after a reload
//	sweep KEY                   the key is swept, whether it is due or not
//	due KEY                     when the key is due to be swept, and whether it has a record of levels
//	redis COMMAND PLACE ARG...  somebody writes into Redis (store.place, store.arguments); COUNTER is the run's form
//	kept PLACE                  how long a key in Redis is kept, in tens of minutes
//	clear                       Redis is empty again
//	log KEY                     the entries of the key's log: time, count, and total
//	total KEY                   the newest total
//	forget KEY                  the newest entry is deleted
//	retention DURATION          how long events are kept
//	ids KEY                     how many ids the key's partition remembers, and for how long
//
// TestStories runs each story two times: first one fold serves all partitions, then each partition has its own fold, as
// on a Cluster. A story with the algorithm EVERY runs so under each algorithm, with the same results. With the
// algorithm EACH, the times at which units leave may differ. With LOGS it runs only under the exact logs. NEXT is the
// algorithm after that of the run.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, rules string, steps []string) (out []string) {
		algorithms, ways := windows.Algorithms, []string{"together", "separately"}
		if testing.Short() || !storyAlgorithm.MatchString(rules) {
			algorithms = algorithms[:1]
		} else if strings.Contains(rules, "LOGS") {
			algorithms = algorithms[:2]
		}
		if testing.Short() { // the embedded Redis compiles each script again for each of them
			ways = ways[:1]
		}
		for _, algorithm := range algorithms {
			for _, way := range ways {
				t.Run(algorithm+"/"+way, func(t *testing.T) {
					eachRedis(t, nil, func(t *testing.T, s *store) {
						s.separately = way == "separately"
						told := tell(t, s, algorithm, rules, steps)
						if algorithm != algorithms[0] && strings.Contains(rules, "EACH") {
							told = withTimesOf(told, out)
						}
						if out == nil {
							out = told
						} else if diff := cmp.Diff(out, told); diff != "" {
							t.Errorf("-%s, together +here:\n%s", algorithms[0], diff)
						}
					})
				})
			}
		}
		if t.Failed() {
			t.FailNow() // -update does not write it
		}
		return out
	})
}

var (
	storyAlgorithm = regexp.MustCompile("EACH|EVERY|LOGS")
	storyTimes     = regexp.MustCompile("(since|until|after|in) [0-9.hms]+")
)

// withTimesOf returns lines with the times of others where they differ in nothing else.
func withTimesOf(lines, others []string) []string {
	for i, line := range lines {
		if i < len(others) && storyTimes.ReplaceAllString(line, "") == storyTimes.ReplaceAllString(others[i], "") {
			lines[i] = others[i]
		}
	}
	return lines
}

// story is one file that is being run.
type story struct {
	*store
	testkit.Words
	algorithm string
	crashed   map[string][]eventlog.Batch // worker → the events that it has read and not folded
	reserved  map[string]string           // word → the id of the reservation
	leased    map[string]int64            // key → the units of its lease
	found     *[]string                   // keys in Redis that were reported as corrupt
}

// tell runs a story under an algorithm, and returns its steps with their results.
func tell(t *testing.T, s *store, algorithm, rules string, steps []string) []string {
	t.Helper()
	return newStory(t, s, algorithm, rules).tell(steps)
}

func newStory(t *testing.T, s *store, algorithm, rules string) *story {
	t.Helper()
	y := &story{store: s, Words: testkit.Words{Failer: t}, algorithm: algorithm,
		crashed: map[string][]eventlog.Batch{}, reserved: map[string]string{}, leased: map[string]int64{}}
	y.rules = parsed(t, y.under(rules))
	testkit.Must(t, y.learn())
	y.found = s.corrupt()
	return y
}

func (y *story) under(rules string) string {
	next := (slices.Index(windows.Algorithms, y.algorithm) + 1) % len(windows.Algorithms)
	return strings.ReplaceAll(storyAlgorithm.ReplaceAllString(rules, y.algorithm), "NEXT", windows.Algorithms[next])
}

func (y *story) tell(steps []string) (out []string) {
	for i := 0; i < len(steps); i++ {
		if strings.HasPrefix(steps[i], "< ") {
			continue
		}
		out = append(out, steps[i])
		step, ok := strings.CutPrefix(steps[i], "> ")
		if !ok {
			continue
		}
		input := ""
		for ; i+1 < len(steps) && strings.HasPrefix(steps[i+1], "  "); i++ {
			out = append(out, steps[i+1])
			input += steps[i+1] + "\n"
		}
		result := y.run(strings.Fields(strings.ReplaceAll(step, "COUNTER", lua.Form(y.algorithm))), input)
		for _, line := range slices.Concat(result, y.corrupted(), y.published()) {
			out = append(out, "< "+line)
		}
	}
	return out
}

// run runs a step, and returns its result: a line or none.
func (y *story) run(words []string, input string) []string {
	rest, values := valuesOf(words)
	of := append(slices.Clone(rest[1:]), "", "", "", "", "")
	switch words[0] {
	case "rules":
		y.load(y.under(input))
	case "add":
		at := y.clock.ms
		if of[2] != "" {
			at = start + y.Duration(of[2][1:]).Milliseconds()
		}
		y.add(counters.Event{Key: of[0], Count: y.Number(of[1]), Ms: at, Fields: values})
	case "work":
		return y.fold(y.read(of[0]))
	case "crash":
		n, batches := 0, y.read(of[0])
		for _, b := range batches {
			n += len(b.Messages)
		}
		y.crashed[of[0]] = batches
		return []string{fmt.Sprintf("%d read", n)}
	case "wake":
		return y.fold(y.crashed[of[0]])
	case "reclaim":
		return y.fold(y.claim(of[0]))
	case "check", "look":
		one := y.request(rest[1:], values)
		if words[0] == "look" {
			one.Mode = api.ModeLook
		}
		return y.checks(one)
	case "run":
		var requests []counters.Request
		for check := range strings.SplitSeq(strings.Join(words[1:], " "), ";") {
			requests = append(requests, y.request(valuesOf(strings.Fields(check))))
		}
		return y.checks(requests...)
	case "bring":
		return y.checks(y.brought(of[0], of[1], y.Number(gocmp.Or(of[2], "1"))))
	case "peek":
		return []string{standing(y.rules.Match(of[0]), y.peek(of[0]))}
	case "refund":
		plan := y.rules.Match(of[0])
		if of[2] != "" {
			plan = y.brought(of[0], of[2], 1).Plan
		}
		given, _, err := y.store.store.Refund(y.t.Context(), plan, of[0], y.Number(of[1]))
		testkit.Must(y.t, err)
		return []string{fmt.Sprintf("%d given back", given)}
	case "reset":
		y.reset(of[0])
	case "reserve":
		if _, cluster := y.redis.(*redis.ClusterClient); cluster && len(words) > 5 {
			y.t.Skip("on a Cluster, a reservation has no keys of several slots")
		}
		id, v := y.reserve(of[0], y.Number(of[1]), y.Duration(of[2]), words[4:]...)
		y.reserved[of[0]] = id
		lines := []string{map[bool]string{true: "reserved", false: "not reserved"}[v.Allowed]}
		for i, key := range words[4:] {
			lines = append(lines, said(y.rules.Match(key), counters.Verdict{Items: v.Items[i : i+1]}))
		}
		return lines
	case "commit":
		return y.settled(reservations.Commit, of[0], y.Number(of[1]), 0)
	case "cancel":
		return y.settled(reservations.Cancel, of[0], 0, 0)
	case "renew":
		return y.settled(reservations.Renew, of[0], 0, y.Duration(of[1]))
	case "lease":
		got := y.leases(of[0], y.Duration(of[2]), api.LeaseRequest{Had: y.leased[of[0]], Want: y.Number(of[1]),
			Used: y.Number(gocmp.Or(of[3], "0")), Keep: y.Number(gocmp.Or(of[4], "0"))})
		y.leased[of[0]] = got
		return []string{fmt.Sprintf("%d units", got)}
	case "override":
		y.override(of[0], of[1])
	case "advance":
		y.after(y.Duration(of[0]))
	case "step":
		y.clock.ms += y.Duration(of[0]).Milliseconds()
	case "recheck":
		for p := range y.keys.Partitions {
			y.sweepLevels(p)
		}
	case "sweep":
		_, _, err := y.store.store.Sweep(y.t.Context(), y.keys.Partition(of[0]), y.rules, []string{of[0]})
		testkit.Must(y.t, err)
	case "due":
		return []string{y.due(of[0])}
	case "redis":
		command := append([]any{of[0], y.place(of[1])}, y.arguments(words[min(3, len(words)):])...)
		testkit.Must(y.t, y.redis.Do(y.t.Context(), command...).Err())
	case "kept":
		return []string{fmt.Sprint("for ", y.redis.PTTL(y.t.Context(), y.place(of[0])).Val().Round(10*time.Minute))}
	case "clear":
		y.clear()
	case "log", "forget", "total":
		log := y.keys.Counter(y.keys.Partition(of[0]), "log", of[0])
		list, err := y.redis.XRange(y.t.Context(), log, "-", "+").Result()
		testkit.Must(y.t, err)
		if words[0] == "forget" {
			testkit.Must(y.t, y.redis.XDel(y.t.Context(), log, list[len(list)-1].ID).Err())
			return nil
		}
		if words[0] == "total" {
			return []string{list[len(list)-1].Values["total"].(string)}
		}
		var lines []string
		for _, e := range list {
			at := y.Number(strings.TrimSuffix(e.ID, "-0")) - start
			lines = append(lines, fmt.Sprintf("%v: %s, %s", ms(at), e.Values["count"], e.Values["total"]))
		}
		return lines
	case "retention":
		y.store.store.Retention = y.Duration(of[0])
	case "ids":
		name := y.keys.IDs(y.keys.Partition(of[0]))
		n, ttl := y.redis.ZCard(y.t.Context(), name).Val(), y.redis.PTTL(y.t.Context(), name).Val()
		return []string{fmt.Sprintf("%d, for %v", n, ttl.Round(time.Minute))}
	default:
		y.t.Fatalf("unknown step %q", words)
	}
	return nil
}

// valuesOf divides the words of a step from the value at their end.
func valuesOf(words []string) (rest []string, values map[string]any) {
	name, value, found := strings.Cut(words[len(words)-1], "=")
	if !found {
		return words, nil
	}
	return words[:len(words)-1], map[string]any{name: strings.ReplaceAll(value, "_", " ")}
}

// request returns a check of KEY [COST].
func (y *story) request(words []string, values map[string]any) counters.Request {
	plan := y.rules.Match(words[0])
	list, err := plan.Values(func(name string) string { return fmt.Sprint(values[name]) })
	testkit.Must(y.t, err)
	return counters.Request{Plan: plan, Key: words[0], Cost: y.Number(append(words, "1")[1]), Values: list}
}

// brought returns a check under a limit that the caller sends.
func (y *story) brought(key, limit string, cost int64) counters.Request {
	rule := &windows.Rule{Name: "override", Match: "*", Algorithm: windows.DefaultAlgorithm, Unlevelled: true,
		Windows: []windows.Window{{Limit: y.Number(limit), Per: 10 * time.Second}}}
	return counters.Request{Plan: windows.PlanOf(rule), Key: key, Cost: cost}
}

// checks answers calls of one request each in one run.
func (y *story) checks(requests ...counters.Request) (lines []string) {
	var calls [][]counters.Request
	for _, one := range requests {
		calls = append(calls, []counters.Request{one})
	}
	told := int64(0)
	for i, v := range y.decideMany(calls...) {
		lines = append(lines, said(requests[i].Plan, v))
		told += v.Transitions
	}
	for _, p := range y.keys.All() {
		told -= y.redis.XLen(y.t.Context(), y.keys.Outbox(p)).Val()
	}
	if told != 0 {
		y.t.Errorf("%v: the answers tell of %d transitions more than there are", requests, told)
	}
	return lines
}

func (y *story) override(key, what string) {
	all := y.rules.Overrides()
	if all == nil {
		all = y.serve.NewOverrides(nil)
		y.rules = y.rules.With(all)
	}
	one := api.Override{Key: key, Rule: what}
	if what == "exempt" {
		one = api.Override{Key: key, Exempt: true}
	}
	if limit, per, found := strings.Cut(what, "/"); found {
		one = api.Override{Key: key, Windows: []api.OverrideWindow{{Limit: y.Number(limit), Per: per}}, Only: true}
	}
	var err error
	if what == "none" {
		_, err = all.Clear(y.t.Context(), key, "", "", "")
	} else {
		_, err = all.Set(y.t.Context(), y.rules.ValidateOverride, one, 0)
	}
	testkit.Must(y.t, err)
}

func (y *story) settled(op reservations.SettleOp, word string, cost int64, ttl time.Duration) []string {
	state := y.settle(op, y.reserved[word], cost, ttl)
	return []string{map[reservations.SettleState]string{reservations.Unknown: "unknown",
		reservations.Settled: "settled", reservations.DoneBefore: "done before",
		reservations.WasCommitted: "was committed", reservations.WasCancelled: "was cancelled",
		reservations.HasExpired: "has expired"}[state]}
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

func (y *story) fold(batches []eventlog.Batch) []string {
	var folds []counters.Batch
	for _, b := range batches {
		folds = append(folds, counters.Batch{Partition: b.Partition, Events: eventsOf(y.t, b)})
	}
	sum, unmatched := y.foldBatches(y.t, folds)
	out := fmt.Sprintf("%d folded", sum.Folded)
	if sum.Late > 0 {
		out += fmt.Sprintf(", %d late", sum.Late)
	}
	if sum.AlreadyCounted > 0 {
		out += fmt.Sprintf(", %d already counted", sum.AlreadyCounted)
	}
	if sum.Duplicate > 0 {
		out += fmt.Sprintf(", %d duplicate", sum.Duplicate)
	}
	if unmatched > 0 {
		out += fmt.Sprintf(", %d without a rule", unmatched)
	}
	return []string{out}
}

// due returns when a key is due to be swept, and whether it has a record.
func (y *story) due(key string) string {
	p := y.keys.Partition(key)
	out := "never"
	if in := y.store.due(key); in >= 0 {
		out = "in " + (time.Duration(in) * time.Millisecond).String()
	}
	if y.redis.HExists(context.Background(), y.keys.Levels(p), key).Val() {
		out += ", with a record"
	}
	return out
}

func (y *story) clear() {
	empty := func(ctx context.Context, c *redis.Client) error {
		for _, name := range c.Keys(ctx, y.keys.Prefix+":*").Val() {
			testkit.Must(y.t, c.Del(ctx, name).Err())
		}
		return nil
	}
	if c, ok := y.redis.(*redis.ClusterClient); ok {
		testkit.Must(y.t, c.ForEachMaster(y.t.Context(), empty))
	} else {
		testkit.Must(y.t, empty(y.t.Context(), y.redis.(*redis.Client)))
	}
	clear(y.leased)
	y.ids, y.versions = map[string]bool{}, map[string]int64{}
}
