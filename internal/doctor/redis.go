package doctor

import (
	"cmp"
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
	// Retention is how long events are kept; default stream.DefaultRetention.
	Retention time.Duration
	// Now is this machine's clock; default time.Now.
	Now func() time.Time
}

func (c RedisConfig) withDefaults() RedisConfig {
	c.Retention = cmp.Or(c.Retention, stream.DefaultRetention)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Redis examines a server that answers, or all masters of a Cluster. ctx bounds it.
func Redis(ctx context.Context, c redis.UniversalClient, config RedisConfig) []Finding {
	config = config.withDefaults()
	servers, err := serversOf(ctx, c)
	if err != nil {
		return []Finding{unseen("redis.cluster", fmt.Errorf("the masters of the Cluster: %w", err),
			"ACL SETUSER <user> +cluster|slots +cluster|info +command")}
	}
	for _, s := range servers {
		s.read(ctx, config.Now)
	}
	findings := append(silent(servers), settingsOf(servers)...)
	findings = append(findings, tells(servers, functions)...)
	findings = append(findings, clusterOf(ctx, c, servers, config.Keys)...)
	findings = append(findings, clocksOf(servers, config.Retention)...)
	findings = append(findings, usersOf(ctx, c, config.Keys, servers)...)
	return append(findings, stateOf(ctx, c, config)...)
}

// Start is the short examination at each start of a process: one round trip to one server, within `within`. It
// returns the findings above a note. For a named user, it reads only what deploy/users.acl allows, because such users
// often have few rights: a refusal would appear in the server's ACL LOG.
func Start(ctx context.Context, c redis.UniversalClient, named bool, within time.Duration) []Finding {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s := &server{client: c, config: map[string]string{}}
	s.readInfo(ctx)
	if !named {
		s.readConfig(ctx)
	}
	if s.infoErr != nil && s.configErr != nil {
		return nil
	}
	return slices.DeleteFunc(settingsOf([]*server{s}), func(f Finding) bool { return !f.Severity.above(Note) })
}

// server holds what one Redis server reports about itself. A map is empty if the server does not report it.
type server struct {
	addr   string // if there are several
	client redis.UniversalClient

	info, config                 map[string]string
	infoErr, configErr, clockErr error
	libraries                    []string // of ours
	functionsErr                 error
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

// silent reports the servers that did not answer.
func silent(servers []*server) (all []Finding) {
	for _, s := range servers {
		if noAnswer(s.infoErr) {
			all = append(all, Finding{Check: RedisReachable, Severity: Problem,
				Found: strings.TrimSpace(s.addr+" does not answer: ") + " " + s.infoErr.Error(),
				Why:   "its partitions take no events, and on_error decides their checks",
				Fix:   "start it; of a Cluster, let a replica take over (CLUSTER FAILOVER TAKEOVER)"})
		}
	}
	return all
}

// read asks a server that does not answer only once: each question could take its whole timeout.
func (s *server) read(ctx context.Context, now func() time.Time) {
	if s.readInfo(ctx); noAnswer(s.infoErr) {
		s.configErr, s.functionsErr, s.clockErr = s.infoErr, s.infoErr, s.infoErr
		return
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
	s.info, s.infoErr = map[string]string{}, err
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			s.info[name] = value
		}
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

// tells returns one finding for all servers: the worst, and if there are several servers, which of them have it.
func tells(servers []*server, look func(*server) (Finding, bool)) []Finding {
	var worst Finding
	var at []string // the servers that are as bad
	for _, s := range servers {
		f, ok := look(s)
		switch {
		case !ok:
		case worst.Check == "" || f.Severity.above(worst.Severity):
			worst, at = f, []string{s.addr}
		case f.Severity == worst.Severity:
			at = append(at, s.addr)
		}
	}
	if worst.Check == "" {
		return nil
	}
	if len(servers) > 1 && len(at) == len(servers) {
		worst.Found += fmt.Sprintf(" (each of %d masters)", len(at))
	} else if len(servers) > 1 {
		worst.Found += " (" + strings.Join(at, ", ") + ")"
	}
	return []Finding{worst}
}

// size formats a number of bytes.
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
