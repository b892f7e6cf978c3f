package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/processes"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/stream"
)

// How long a decision may wait for NATS before this is a warning, and before it is a problem.
const outboxLate, outboxStuck = 30 * time.Second, 5 * time.Minute

// worst keeps the oldest item of a kind over the partitions.
type worst struct {
	age       time.Duration
	partition int
	total     int64 // over all partitions
	parts     int   // partitions that have any
}

func (w *worst) add(p int, n int64, age time.Duration) {
	if n == 0 {
		return
	}
	w.total, w.parts = w.total+n, w.parts+1
	if w.parts == 1 || age > w.age {
		w.age, w.partition = age, p
	}
}

// oldest returns how old it is, and in which partition.
func (w *worst) oldest() string {
	return fmt.Sprintf("the oldest %v old, in partition %d", w.age.Round(time.Second), w.partition)
}

// stateOf checks the keys of the prefix: the settings that the first start stored, what waits, what was lost.
func stateOf(ctx context.Context, c redis.UniversalClient, config RedisConfig) []Finding {
	k := config.Keys
	meta, ours := metaOf(ctx, c, k)
	all := []Finding{meta}
	if !ours {
		return all // the other keys may be of another version or number of partitions
	}
	all = append(all, rulesOf(ctx, c, k))

	backlogs, failed := eventlog.Backlogs(ctx, c, k)
	types := eventlog.TypesOf(ctx, c, k, k.All())
	pipe := c.Pipeline()
	looks, wrong := make([]partitionState, k.Partitions), wrongAnnounced(ctx, c, k) // wrong: keys
	for p := range looks {
		looks[p] = readPartition(ctx, pipe, k, p)
	}
	eventlog.Exec(ctx, c, pipe)

	var unreadIn, pendingIn, outboxIn, deadIn worst
	var future, failedIn []string // streams, partitions
	var first, typesFailed error
	for p, l := range looks {
		b, known := backlogs[p]
		key, err := l.failed()
		if types[p].Beside != "" {
			wrong = append(wrong, types[p].Beside)
		}
		if is := types[p]; is.Wrong != "" || key != "" {
			wrong = append(wrong, cmp.Or(is.Wrong, key))
			continue
		}
		if err == nil && !known {
			err = failed
		}
		if err != nil {
			first, failedIn = cmp.Or(first, err), append(failedIn, strconv.Itoa(p))
			continue
		}
		typesFailed = cmp.Or(typesFailed, types[p].Err)
		if b.Unread {
			unreadIn.add(p, 1, b.Oldest)
		}
		if list := l.newest.Val(); len(list) > 0 && entry.Ms(list[0].ID) > b.NowMs+time.Minute.Milliseconds() {
			future = append(future, k.Events(p))
		}
		if x := l.pending.Val(); x != nil && x.Count > 0 {
			pendingIn.add(p, x.Count, eventlog.Age([]redis.XMessage{{ID: x.Lower}}, b.NowMs))
		}
		outboxIn.add(p, l.outbox.Val(), eventlog.Age(l.head.Val(), b.NowMs))
		deadIn.add(p, l.dead.Val(), eventlog.Age(l.letter.Val(), b.NowMs))
	}
	all = append(all, partsOf(k, config.Retention, wrong, failedIn, first, typesFailed)...)
	if len(failedIn) == k.Partitions {
		return all
	}
	if len(future) > 0 {
		all = append(all, Finding{Check: "state.future", Severity: Problem,
			Found: "the newest event has an ID of the future in " + strings.Join(future, ", "),
			Why:   "nothing trims the stream until that time; after the greatest ID nobody can append",
			Fix:   "stop the producer, then delete the stream; its unread events are lost (docs/runbook.md)"})
	}
	return append(all, waiting("state.unread", unreadIn,
		"unread events in "+english.Plural(unreadIn.parts, "partition"), "every event is read", config.Retention,
		"start workers: streamcounter work"),
		waiting("state.pending", pendingIn, english.Plural(pendingIn.total, "event")+" read and not counted",
			"no event is pending", config.Retention, "look at the log of `work`, and that one runs"),
		outboxOf(outboxIn), deadOf(deadIn, k))
}

// wrongAnnounced returns the keys of the wrong type among those with which processes announce themselves.
func wrongAnnounced(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (wrong []string) {
	for _, cmd := range []redis.Cmder{c.HLen(ctx, k.Processes()), c.ZCard(ctx, k.Libraries())} {
		if redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") {
			wrong = append(wrong, fmt.Sprint(cmd.Args()[1]))
		}
	}
	return wrong
}

// partitionState has the commands that read the state of one partition.
type partitionState struct {
	newest, head, letter *redis.XMessageSliceCmd
	pending              *redis.XPendingCmd
	outbox, dead         *redis.IntCmd
}

func readPartition(ctx context.Context, pipe redis.Pipeliner, k *stream.Keys, p int) partitionState {
	return partitionState{
		newest:  pipe.XRevRangeN(ctx, k.Events(p), "+", "-", 1),
		pending: pipe.XPending(ctx, k.Events(p), eventlog.Group),
		outbox:  pipe.XLen(ctx, k.Outbox(p)), head: pipe.XRangeN(ctx, k.Outbox(p), "-", "+", 1),
		dead: pipe.XLen(ctx, k.Dead(p)), letter: pipe.XRevRangeN(ctx, k.Dead(p), "+", "-", 1),
	}
}

// failed returns the key that has the wrong type, or the first other error.
func (l partitionState) failed() (key string, failed error) {
	for _, cmd := range []redis.Cmder{l.newest, l.pending, l.outbox, l.head, l.dead, l.letter} {
		err := withoutExpected(cmd.Err())
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return fmt.Sprint(cmd.Args()[1]), nil
		}
		failed = cmp.Or(failed, err)
	}
	return "", failed
}

// partsOf reports the keys of the wrong type and the partitions that were not checked. first is the error of the first
// of them, types that of the first of which the types are unknown.
func partsOf(k *stream.Keys, retention time.Duration, wrong, failedIn []string, first, types error) (
	all []Finding) {
	if len(wrong) > 0 {
		all = append(all, wrongType("state.types", wrong...).as(Problem,
			fmt.Sprintf("until the key is gone, `work` leaves the partition alone (events are lost after %v), or its "+
				"reservations or overrides fail, or processes cannot announce themselves", retention),
			"RENAME "+wrong[0]+" away, or delete it"))
	}
	if types != nil {
		all = append(all, notChecked("state.types", types, "ACL SETUSER <user> +hlen +zcard"))
	}
	if len(failedIn) == 0 {
		return all
	}
	f := notChecked("state", first,
		"ACL SETUSER <user> ~"+k.Prefix+":* +time +xinfo|groups +xpending +xlen +xrange +xrevrange")
	if len(failedIn) < k.Partitions {
		f.Found += " (partitions " + strings.Join(failedIn, ", ") + ")"
	}
	f.Why = "not checked: unread events, pending ones, outbox, dead letters"
	return append(all, f)
}

func wrongType(check string, keys ...string) Finding {
	return found(check, strings.Join(keys, ", ")+" has the wrong type: another program wrote it")
}

// withoutExpected ignores the errors that a stream or a group does not exist, and that an event is too large.
func withoutExpected(err error) error {
	if err == nil || errors.Is(err, redis.Nil) || errors.Is(err, replyguard.ErrTooLarge) ||
		strings.HasPrefix(err.Error(), "NOGROUP") ||
		strings.HasPrefix(err.Error(), "ERR no such key") {
		return nil
	}
	return err
}

// metaOf compares the settings of the prefix with those that the first start stored. ours is false if the prefix is
// in use with other settings, or not at all.
func metaOf(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (f Finding, ours bool) {
	f = Finding{Check: "redis.meta", Severity: Problem}
	have, err := c.HGetAll(ctx, k.Meta()).Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return wrongType(f.Check, k.Meta()).as(Problem, "no process can start",
			"RENAME "+k.Meta()+" away: the next start of a process makes it again"), true
	case err != nil:
		return notChecked(f.Check, err, "ACL SETUSER <user> ~"+k.Prefix+":* +hgetall"), true
	case len(have) == 0:
		f.Severity, f.Found = Note, "the prefix "+k.Prefix+" is not in use yet"
		f.Why = "no process of streamcounter has started here, or only with another --prefix"
	case have["version"] != strconv.Itoa(stream.Version):
		f.Found = fmt.Sprintf("the Redis contract is version %q, this program has %d", have["version"], stream.Version)
		f.Why, f.Fix = "processes of this version refuse to start", "use the version that made it, or a new --prefix"
	case have["partitions"] != strconv.Itoa(k.Partitions):
		f.Found = fmt.Sprintf("%s has %q partitions, --partitions says %d", k.Meta(), have["partitions"], k.Partitions)
		f.Why, f.Fix = "the same key would be counted in two places, so a process refuses to start",
			"--partitions "+have["partitions"]+", or a new --prefix"
	default:
		f.Severity = OK
		f.Found = fmt.Sprintf("%s, contract %d", english.Plural(k.Partitions, "partition"), stream.Version)
	}
	return f, f.Severity == OK
}

// rulesOf reports whether all running processes have the same rules.
func rulesOf(ctx context.Context, c redis.UniversalClient, k *stream.Keys) Finding {
	f := Finding{Check: "state.rules", Severity: OK}
	list, now, err := processes.List(ctx, c, k)
	if err != nil {
		return notChecked(f.Check, err, "ACL SETUSER <user> ~"+k.Prefix+":* +time +hgetall")
	}
	groups := processes.ByRules(list)
	switch {
	case len(list) == 0:
		f.Found = "no process runs"
		return f
	case len(groups) == 1:
		f.Found = "all processes have the same: " + processes.Words(groups)
		return f
	}
	since := slices.MaxFunc(list, func(a, b processes.Process) int { return cmp.Compare(a.SinceMs, b.SinceMs) }).SinceMs
	newest := time.Duration(max(0, now-since)) * time.Millisecond
	f.Severity, f.Found = Warning, english.Plural(len(groups), "different set")+" in use, "+processes.Words(groups)
	f.Why = "processes with different rules publish decisions that contradict each other"
	f.Fix = "give all processes the same rules file; each says the fingerprint of its rules in its log line `ready`"
	if newest < processes.Grace {
		f.Severity = Note
		f.Why = "the newest is in use for " + newest.Round(time.Second).String() + ": a reload may be under way"
	}
	return f
}

// waiting sets the severity of waiting events by the part of the retention that they have waited.
func waiting(check string, w worst, what, none string, retention time.Duration, fix string) Finding {
	if w.total == 0 {
		return found(check, none)
	}
	return grade(found(check, what+", "+w.oldest()), w.age, retention/10, retention/2,
		fmt.Sprintf("events are trimmed after %v, counted or not", retention), fix)
}

func outboxOf(w worst) Finding {
	const check = "state.outbox"
	if w.total == 0 {
		return found(check, "every decision is published")
	}
	waits := found(check, english.Plural(w.total, "transition")+" not yet published, "+w.oldest())
	return grade(waits, w.age, outboxLate, outboxStuck,
		"subscribers do not hear who is throttled, and the outbox has no bound",
		"look at NATS, and at the log of `work`")
}

func deadOf(w worst, k *stream.Keys) Finding {
	const check = "state.dead"
	if w.total == 0 {
		return found(check, "no dead letters")
	}
	name := k.Dead(w.partition)
	return found(check, fmt.Sprintf("%s in %s, such as in %s", english.Plural(w.total, "dead letter"),
		english.Plural(w.parts, "partition"), name)).as(Warning,
		"a producer writes what cannot be counted, or events were lost: each letter has its reason",
		"XREVRANGE "+name+" + - COUNT 10; when fixed, DEL "+name)
}
