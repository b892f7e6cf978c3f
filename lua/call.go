package lua

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Caller runs the operations on a server, or on the masters of a Cluster. It is safe for concurrent use.
//
// A call runs a function of the library (FCALL). If a server lacks the library, Caller loads it. If a server accepts
// no functions, Caller sends the operation as a script (EVALSHA).
type Caller struct {
	client redis.UniversalClient
	// noFunctions is the time until which calls run as scripts, in ms since 1970, because functions were refused.
	noFunctions atomic.Int64
	// plain: the server has no Redis Functions, and scripts with a first line for their flags do not work there either.
	plain    atomic.Bool
	prepared atomic.Bool // Prepare has succeeded

	// Corrupt is called with the name of each key in Redis that an operation found corrupt or foreign. The key counts
	// as empty, and the next write replaces it. Set Corrupt before the first call; nil: nothing is called.
	Corrupt func(name string)
}

// NewCaller returns a Caller for a client.
func NewCaller(c redis.UniversalClient) *Caller { return &Caller{client: c} }

// Client returns the client of NewCaller.
func (s *Caller) Client() redis.UniversalClient { return s.client }

// How long calls run as scripts after a server has refused functions: because it has no Redis Functions, because the
// user may not call them, or because it does not accept a library now (for example, its memory is full).
const (
	unknownFor   = time.Minute
	forbiddenFor = 10 * time.Second
	busyFor      = time.Second
)

// functionOf: operation → function; others use writes. Some run even if memory is full, because they free memory or
// must not wait for it. A fold reads events that are in memory already, and allows them to be trimmed.
var functionOf = map[string]function{"peek": looks, "fold": frees, "sweep": frees, "reset": frees, "settle": frees,
	"lock": frees, "expire-overrides": frees, "override": frees, "deadletter": frees, "gap": frees, "retire": frees}

// Call runs an operation of the library with the keys and arguments that its file in operations/ describes. plans are
// those in the arguments. Only some operations are safe to send again. After an error of the others it is unknown
// whether they ran.
//
// If a check must not write, because memory is full or replicas are missing, it is tried as a look, which succeeds if
// the check is denied and none of its levels changes.
func (s *Caller) Call(ctx context.Context, op string, plans []*Plan, keys []string, args ...any) *Reply {
	args = append(args, op) // run_operation in library.lua takes the name from the last argument
	v, err := s.run(ctx, op, functionOf[op], plans, keys, args)
	if op == "check" && (hasPrefix(err, "OOM") || hasPrefix(err, "NOREPLICAS")) {
		args[len(args)-1] = "look"
		if seen, failed := s.run(ctx, op, looks, plans, keys, args); failed == nil {
			v, err = seen, nil
		}
	}
	if err != nil {
		return &Reply{op: op, err: fmt.Errorf("%s script: %w", op, err)}
	}
	list, several := v.([]any)
	if !several {
		list = []any{v}
	}
	if last := len(list) - 1; last >= 0 {
		if corrupt, ok := list[last].([]any); ok {
			list = list[:last]
			for _, name := range corrupt {
				s.ReportCorrupt(fmt.Sprint(name))
			}
		}
	}
	return &Reply{op: op, list: list}
}

// ReportCorrupt calls Corrupt.
func (s *Caller) ReportCorrupt(name string) {
	if s.Corrupt != nil {
		s.Corrupt(name)
	}
}

// run runs an operation as a function, or as a script with the algorithms that the plans need. It falls back to the
// script only if the server has answered that nothing has run.
func (s *Caller) run(ctx context.Context, op string, as function, plans []*Plan, keys []string, args []any) (any,
	error) {
	if time.Now().UnixMilli() >= s.noFunctions.Load() {
		v, err := s.callOn(ctx, s.client, as, keys, args)
		if !s.mayFallBack(err) {
			return v, err
		}
	}
	return s.script(op, as, plans).Run(ctx, s.client, keys, args...).Result()
}

// errNoFunctions: the server has not accepted the library. notLoaded has set how long calls run as scripts then.
var errNoFunctions = errors.New("the server does not accept the library")

// mayFallBack reports whether a call has not run because the server has no such function. If so, it sets how long
// calls run as scripts.
func (s *Caller) mayFallBack(err error) bool {
	switch {
	case err == nil:
		s.plain.Store(false)
		return false
	case errors.Is(err, errNoFunctions):
	case isNotFound(err):
		// A node to which a slot is being moved has no library, and the library cannot be loaded with a key
		// of that slot. Or a foreign library has the same name.
		s.useScriptsFor(busyFor)
	case isUnknownCommand(err):
		s.plain.Store(true)
		s.useScriptsFor(unknownFor)
	case mayNotCall(err):
		s.useScriptsFor(forbiddenFor)
	default:
		return false
	}
	return true
}

func (s *Caller) useScriptsFor(d time.Duration) { s.noFunctions.Store(time.Now().Add(d).UnixMilli()) }

// callOn calls a function on a server, or on the master of a Cluster that has the first key. If the library is not
// there, callOn loads it and calls once more.
func (s *Caller) callOn(ctx context.Context, c redis.Cmdable, as function, keys []string, args []any) (any, error) {
	v, err := fcallOn(ctx, c, as, keys, args)
	if !isNotFound(err) {
		return v, err
	}
	server := c
	if cluster, ok := c.(*redis.ClusterClient); ok {
		if server, err = cluster.MasterForKey(ctx, keys[0]); err != nil {
			return nil, err
		}
	}
	if err := load(ctx, server); err != nil {
		return nil, s.notLoaded(err)
	}
	return fcallOn(ctx, c, as, keys, args)
}

func fcallOn(ctx context.Context, c redis.Cmdable, as function, keys []string, args []any) (any, error) {
	name := Library().Name + string(as)
	if as == looks {
		return c.FCallRO(ctx, name, keys, args...).Result()
	}
	return c.FCall(ctx, name, keys, args...).Result()
}

// Prepare loads the library on each server, so that the first call is not slow. If a server accepts no functions, it
// compiles the most used scripts of these plans. It returns no error: the first call returns it.
func (s *Caller) Prepare(ctx context.Context, plans []*Plan) {
	if s.prepared.Load() || time.Now().UnixMilli() < s.noFunctions.Load() && !s.plain.Load() {
		return
	}
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		s.prepared.Store(cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return s.prepare(ctx, node)
		}) == nil)
		return
	}
	switch err := s.prepare(ctx, s.client); {
	case err == nil:
		s.prepared.Store(true)
	case isUnknownCommand(err):
		s.plain.Store(true)
		s.useScriptsFor(unknownFor)
		compiled := map[*redis.Script]bool{}
		for _, p := range plans {
			for _, op := range []string{"check", "fold"} {
				script := s.script(op, writes, []*Plan{p})
				if !compiled[script] {
					compiled[script] = true
					_ = script.Run(ctx, s.client, nil, "none").Err() // there is no such operation
				}
			}
		}
	}
}

// prepare loads the library on one server, if it is not there, and calls it once, because the first call sets it up.
func (s *Caller) prepare(ctx context.Context, c redis.Cmdable) error {
	_, err := s.callOn(ctx, c, looks, nil, []any{"none"})
	if mayNotCall(err) {
		s.useScriptsFor(forbiddenFor)
	}
	if hasPrefix(err, "ERR no operation") || errors.Is(err, errNoFunctions) {
		return nil
	}
	return err
}

// Load loads the library on the server, or on all masters of a Cluster, if it is not there yet.
func (s *Caller) Load(ctx context.Context) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return load(ctx, node)
		})
	}
	return load(ctx, s.client)
}

// load loads the library on one server, if it is not there yet.
func load(ctx context.Context, c redis.Cmdable) error {
	err := c.FunctionLoad(ctx, Library().Text).Err()
	var answered redis.Error
	if err == nil || errors.As(err, &answered) && strings.Contains(answered.Error(), "already exists") {
		return nil
	}
	return fmt.Errorf("loading the library: %w", err)
}

// notLoaded returns errNoFunctions if a server has not accepted the library, otherwise the error of load.
func (s *Caller) notLoaded(err error) error {
	var answered redis.Error
	switch {
	case !errors.As(err, &answered):
		return err
	case hasPrefix(err, "NOPERM"):
		s.useScriptsFor(forbiddenFor)
	default:
		s.useScriptsFor(busyFor)
	}
	return errNoFunctions
}

func isNotFound(err error) bool       { return hasPrefix(err, "ERR Function not found") }
func isUnknownCommand(err error) bool { return hasPrefix(err, "ERR unknown command") }

// mayNotCall reports whether the user may not call functions. It is false if the user may not run a command that a
// function runs, because that function may already have written.
func mayNotCall(err error) bool {
	return hasPrefix(err, "NOPERM") && strings.Contains(err.Error(), "'fcall")
}

func hasPrefix(err error, prefix string) bool {
	var answered redis.Error
	return errors.As(err, &answered) && strings.HasPrefix(answered.Error(), prefix)
}

var scripts sync.Map // first line, operation and algorithms → *redis.Script

// script returns the operation as a script. The script's first line has the flags of the function.
func (s *Caller) script(op string, as function, plans []*Plan) *redis.Script {
	head, algorithms := "", algorithmsOf(plans)
	if !s.plain.Load() {
		head = "#!lua"
		if flags[as] != "" {
			head += " flags=" + flags[as]
		}
		head += "\n"
	}
	name := head + op + "/" + strings.Join(algorithms, "+")
	if known, ok := scripts.Load(name); ok {
		return known.(*redis.Script)
	}
	made, _ := scripts.LoadOrStore(name, redis.NewScript(head+Source(op, algorithms...)))
	return made.(*redis.Script)
}
