package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// RedisConfig is what streamcounter expects of a Redis server.
type RedisConfig struct {
	Keys *stream.Keys // required
	// Retention is how long events are kept; required.
	Retention time.Duration
	// Now is this machine's clock; default time.Now.
	Now func() time.Time
}

// answerWithin is how long a server may take to answer INFO. The rest of the time is for reading keys.
const answerWithin = 2 * time.Second

// Redis examines a server, or all masters of a Cluster concurrently. ctx bounds it. The client must not be used after
// that: it sends nothing more to a server that did not answer.
func Redis(ctx context.Context, c redis.UniversalClient, config RedisConfig) []Finding {
	if config.Now == nil {
		config.Now = time.Now
	}
	servers, err := serversOf(ctx, c)
	if err != nil {
		return []Finding{notChecked("redis.cluster", fmt.Errorf("the masters of the Cluster: %w", err),
			"ACL SETUSER <user> +cluster|slots +cluster|info +command")}
	}
	each(servers, func(s *server) { s.read(ctx, config.Now) })
	findings := append(silent(servers), settingsOf(servers)...)
	findings = append(findings, worstOf(servers, functions)...)
	findings = append(findings, clusterOf(ctx, c, servers, config.Keys)...)
	findings = append(findings, clocksOf(servers, config.Retention)...)
	findings = append(findings, usersOf(ctx, config.Keys, servers)...)
	return append(findings, stateOf(ctx, c, config)...)
}

// Start is the short examination at each start of a process with the rights of a role in deploy/users.acl, within
// `within`. It returns the findings above a note. For a named user, it reads only what that file allows, because such
// users often have few rights: a refusal would appear in the server's ACL LOG.
func Start(ctx context.Context, c redis.UniversalClient, k *stream.Keys, role string, within time.Duration) []Finding {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	servers, err := serversOf(ctx, c)
	if err != nil {
		return nil // the next step of the start fails with the same error
	}
	each(servers, func(s *server) {
		if s.readInfo(ctx); userOf(s.client) == "" {
			s.readConfig(ctx)
		}
		s.rights = mayStart(ctx, s.client, k, role)
	})
	findings := append(silent(servers), worstOf(servers, func(s *server) Finding { return s.rights })...)
	servers = slices.DeleteFunc(servers, func(s *server) bool { return s.infoErr != nil && s.configErr != nil })
	return slices.DeleteFunc(append(findings, settingsOf(servers)...), func(f Finding) bool {
		return !f.Severity.above(Note)
	})
}

func each(servers []*server, do func(*server)) {
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() { do(s) })
	}
	all.Wait()
}

// server holds what one Redis server reports about itself. A map is empty if the server does not report it.
type server struct {
	addr   string // if there are several
	client redis.UniversalClient

	info, config                 map[string]string
	infoErr, configErr, clockErr error
	libraries                    []string // of ours
	functionsErr                 error
	rights                       Finding       // what mayStart found
	ahead, unsure                time.Duration // how far its clock is ahead of this machine, and half of the round trip
}

func serversOf(ctx context.Context, c redis.UniversalClient) ([]*server, error) {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		return []*server{{client: c}}, nil
	}
	var mu sync.Mutex
	var list []*server
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, &server{addr: node.Options().Addr, client: node})
		return nil
	})
	if err == nil && len(list) == 0 {
		err = errors.New("none is known")
	}
	slices.SortFunc(list, func(a, b *server) int { return strings.Compare(a.addr, b.addr) })
	return list, err
}

// answering returns a server that answers, if one does, for what is the same on each. A Cluster client would ask any.
func answering(servers []*server) redis.UniversalClient {
	at := slices.IndexFunc(servers, func(s *server) bool { return !noAnswer(s.infoErr) })
	return servers[max(at, 0)].client
}

func silent(servers []*server) (all []Finding) {
	for _, s := range servers {
		if noAnswer(s.infoErr) {
			all = append(all, found(RedisReachable, s.infoErr.Error()).as(Problem,
				"its partitions take no events, and on_error decides their checks",
				"start it; of a Cluster, let a replica take over (CLUSTER FAILOVER TAKEOVER)"))
		}
	}
	return all
}

// read asks a server that does not answer only once: each question could take its whole timeout. All later questions
// to it, also those about keys, return the same error at once.
func (s *server) read(ctx context.Context, now func() time.Time) {
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if s.readInfo(within); noAnswer(s.infoErr) {
		s.client.AddHook(sendsNothing{s.infoErr})
	}
	s.readConfig(ctx)
	s.readFunctions(ctx)
	before := now()
	at, err := s.client.Time(ctx).Result()
	after := now()
	s.unsure = after.Sub(before) / 2
	s.ahead, s.clockErr = at.Sub(before.Add(s.unsure)), err
}

func (s *server) readInfo(ctx context.Context) {
	text, err := s.client.Info(ctx).Result()
	if noAnswer(err) {
		err = fmt.Errorf("%s: %w", strings.TrimSpace(s.addr+" does not answer"), err)
	}
	s.info, s.infoErr = map[string]string{}, err
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			s.info[name] = value
		}
	}
}

// sendsNothing is a hook of a client: each command fails with this error.
type sendsNothing struct{ error }

// DialHook implements redis.Hook.
func (h sendsNothing) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h sendsNothing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(h.error)
		return h.error
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h sendsNothing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(h.error)
		}
		return h.error
	}
}

// wanted are the settings that INFO does not have.
var wanted = []string{"appendfsync", "save", "stream-node-max-bytes", "stream-node-max-entries",
	"lazyfree-lazy-expire", "min-replicas-to-write"}

func (s *server) readConfig(ctx context.Context) {
	args := []any{"CONFIG", "GET"}
	for _, name := range wanted {
		args = append(args, name)
	}
	cmd := redis.NewMapStringStringCmd(ctx, args...) // several settings in one call are possible since 7.0
	s.configErr = s.client.Process(ctx, cmd)
	s.config = cmd.Val()
}

// worstOf returns the worst findings about the servers. It joins findings with the same Why. If there are several
// servers, it names those that have each. look returns a Finding without a Check if it has none about a server.
func worstOf(servers []*server, look func(*server) Finding) (worst []Finding) {
	var at [][]string // the servers that have each
	for _, s := range servers {
		f := look(s)
		if f.Check == "" || len(worst) > 0 && worst[0].Severity.above(f.Severity) {
			continue
		}
		if len(worst) > 0 && f.Severity.above(worst[0].Severity) {
			worst, at = nil, nil
		}
		i := slices.IndexFunc(worst, func(w Finding) bool { return w.Why == f.Why })
		if i < 0 {
			i, worst, at = len(worst), append(worst, f), append(at, nil)
		}
		at[i] = append(at[i], s.addr)
	}
	for i := range worst {
		if len(servers) > 1 && len(at[i]) == len(servers) {
			worst[i].Found += fmt.Sprintf(" (each of %d masters)", len(servers))
		} else if len(servers) > 1 {
			worst[i].Found += " (" + strings.Join(at[i], ", ") + ")"
		}
	}
	return worst
}

func size(n int64) string {
	f, unit := float64(n), "B"
	for _, next := range []string{"KB", "MB", "GB", "TB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, next
	}
	if unit == "B" || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, unit)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
