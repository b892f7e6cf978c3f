// Package settings owns everything that can be set. config.go is the table of settings; every command has a Config,
// and selects the groups that it needs. Read flags.go next: how flags and the environment are read into it. errors.go
// formats the errors of settings, tls.go makes TLS configurations from files, ratelimit.go reads the variables of
// envoyproxy/ratelimit.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/streamcounter/streamcounter/check/envoy"
	envoyconfig "github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/stream"
)

// Config is everything that can be set. Flags and the environment are decoded into it once, before a command runs
// (load in flags.go); after that, no code reads a flag by its name. The meaning of a field, its default and its
// special values are in groups, the one table from which flags, variables and the docs are made.
type Config struct {
	Redis  Redis
	NATS   NATS
	Rules  Rules
	HTTP   string // address to listen on; for a command that calls a server, that server
	Health string // address for probes; empty: not served
	GRPC   GRPC
	Access Access
	Checks Checks
	Caller Caller
	Stream Stream
	Work   Work
	// RateLimit has the variables of envoyproxy/ratelimit that only the command ratelimit reads.
	RateLimit RateLimit
	Sinks     string        // file
	LogFormat string        // text, json; empty: text on a terminal
	Stop      time.Duration // most time for a clean stop
	Log       slog.Level    // at the start
	Debug     string        // address of profiles and the log level; empty: not served

	Level  slog.LevelVar // of the messages that are logged now: Log, until somebody changes it
	groups []group
	used   []setting // the settings that are flags of the command
	// FlagsOnly are the names of groups that the command reads only from flags, never from the environment.
	FlagsOnly []string
	warnings  []string // sentences about variables that are ignored
}

// Redis is the server with the events and counters.
type Redis struct {
	URL string // or embedded, or embedded:PORT
	TLS ClientFiles
}

// NATS is the server to which decisions and alerts are published.
type NATS struct {
	URL         string // or embedded, or embedded:PORT; empty: none
	Creds, NKey string // files; at most one of them
	TLS         ClientFiles
	Store       string // directory of an embedded server; empty: a temporary one
	Replicas    int    // of the JetStream streams when they are created
	Monitor     string // URL of its monitoring port; empty: not known
}

// Rules are files of rules and of limits.
type Rules struct {
	File                string // a rules file
	Limits              string // a file or directory of envoyproxy/ratelimit
	envoyconfig.Options        // of Limits
}

// Words are the arguments of `rules check` for these rules.
func (c Rules) Words() string {
	words := c.File
	if c.Limits != "" {
		words = strings.TrimSpace(words + " --rls-config " + c.Limits)
	}
	return words
}

// GRPC is the gRPC interface: Envoy's rate limit service.
type GRPC struct {
	Addr       string // empty: not served
	Headers    bool
	MaxStreams int           // of one connection
	MaxAge     time.Duration // of a connection
	MaxIdle    time.Duration // of a connection without calls
	Grace      time.Duration // for calls when a connection has reached MaxAge

	Names     envoy.HeaderNames // in place of Headers
	Metadata  bool
	Metrics   bool
	NearLimit int // percent
}

// Access says who may call a server.
type Access struct {
	Tokens              string // file
	Cert, Key, ClientCA string // files
	Open                bool
	MaxConnections      int // to one address
}

// Checks says how a server answers checks and accepts events.
type Checks struct {
	Extractors string        // file
	Timeout    time.Duration // of one check
	Denials    int           // denied keys that are remembered; 0: none
	Bouncers   string        // names of rules, separated by commas; empty: no decisions for CrowdSec's bouncers
	Instances  int           // server processes that share the limits of on_error: local
	MaxBacklog time.Duration // 0 becomes half the retention when the configuration is loaded
}

// Caller is how a command authenticates itself to the server at HTTP.
type Caller struct {
	Token string
	TLS   ClientFiles
}

// Stream must be the same for all processes and producers of a prefix.
type Stream struct {
	Prefix     string
	Partitions int
	Retention  time.Duration
}

// Work says how a worker counts events.
type Work struct {
	Batch     int           // events that are counted in one step, at most
	ReadPause time.Duration // between two reads of events
	MinIdle   time.Duration // of a worker, before other workers take over its events
}

// SinksFile returns --sinks, or an error if it is empty, for a command that needs it.
func (c *Config) SinksFile() (string, error) {
	if c.Sinks == "" {
		return "", UsageErrorf("missing --sinks FILE (%s)", EnvName("sinks"))
	}
	return c.Sinks, nil
}

// New returns the defaults. A command with other defaults sets them before it calls Flags.
func New() *Config {
	c := &Config{
		Redis:  Redis{TLS: ClientFiles{name: "redis"}},
		NATS:   NATS{TLS: ClientFiles{name: "nats"}},
		Caller: Caller{TLS: ClientFiles{name: "http"}},
	}
	c.groups = c.table()
	return c
}

// table is the one table of settings: groups that commands select by name.
func (c *Config) table() []group {
	return []group{
		{"redis", []setting{
			secret(set(&c.Redis.URL, "redis", "redis://127.0.0.1:6379",
				"Redis: a URL (redis:// or rediss://), or nodes of a Cluster separated by commas (one is enough), "+
					"redis+sentinel://HOST:PORT,HOST:PORT/MASTER (rediss+sentinel:// with TLS), or embedded[:PORT] "+
					"to run one")),
			set(&c.Redis.TLS.ca, "redis-ca", "",
				"CA certificates (PEM) to verify Redis with; empty: those of the system"),
			set(&c.Redis.TLS.cert, "redis-cert", "", "client certificate (PEM) for Redis"),
			set(&c.Redis.TLS.key, "redis-key", "", "private key (PEM) of --redis-cert"),
		}},
		{"nats", []setting{
			secret(set(&c.NATS.URL, "nats", "nats://127.0.0.1:4222",
				"NATS: a URL, several separated by commas, or embedded[:PORT] to run one")),
			set(&c.NATS.Creds, "nats-creds", "", "credentials file of a NATS user (JWT and seed)"),
			set(&c.NATS.NKey, "nats-nkey", "", "seed file of a NATS user that authenticates with an NKey"),
			set(&c.NATS.TLS.ca, "nats-ca", "", "CA certificates (PEM) to verify NATS with; requires TLS"),
			set(&c.NATS.TLS.cert, "nats-cert", "", "client certificate (PEM) for NATS; requires TLS"),
			set(&c.NATS.TLS.key, "nats-key", "", "private key (PEM) of --nats-cert"),
		}},
		{"jetstream", []setting{
			set(&c.NATS.Store, "nats-store", "", "directory of an embedded NATS's streams; empty: a temporary one"),
			set(&c.NATS.Replicas, "nats-replicas", 1, "replicas of the JetStream streams when they are created"),
		}},
		{"doctor", []setting{
			set(&c.NATS.Monitor, "nats-monitor", "",
				"URL of NATS's monitoring port (http://HOST:8222), where doctor reads how often the "+
					"server syncs to disk"),
		}},
		{"rules", []setting{
			set(&c.Rules.File, "rules", "", "rules file (YAML)"),
			set(&c.Rules.Limits, "rls-config", "",
				"limits of Envoy's rate limit service: a YAML file of envoyproxy/ratelimit, or a directory of them; "+
					"give serve and work the same files, and the same --rls-tag to --rls-quota"),
			set(&c.Rules.Tag, "rls-tag", "", "key of the descriptor entry whose value chooses the partition: "+
				"descriptors that share it are decided in one step"),
			set(&c.Rules.Algorithm, "rls-algorithm", "sliding-log", "algorithm of all limits of --rls-config"),
			set(&c.Rules.Calendar, "rls-calendar", "",
				"time zone, such as Europe/Berlin: months and years of --rls-config follow its calendar; "+
					"empty: they are 30 and 365 days, as in envoyproxy/ratelimit"),
			set(&c.Rules.OnDeny, "rls-on-deny", "skip",
				"what happens to denied hits of a limit without on_deny: skip, or charge, as in "+
					"envoyproxy/ratelimit"),
			set(&c.Rules.MergeDomains, "rls-merge-domains", false,
				"allow several files of --rls-config with one domain, and merge them"),
			set(&c.Rules.Shadow, "rls-shadow", false,
				"limits of --rls-config never deny: they count, and statuses say which are over"),
			set(&c.Rules.Quota, "rls-quota", false,
				"treat all limits of --rls-config as quotas (quota_mode)"),
		}},
		{"listen", []setting{
			set(&c.HTTP, "http", "127.0.0.1:8080", "address of the HTTP interface and of /metrics"),
			set(&c.Health, "health", "",
				"address for probes (/healthz and /readyz), in plain text and without tokens; empty: "+
					"none"),
			set(&c.Access.Tokens, "tokens", "",
				"file of bearer tokens and their scopes (YAML); empty: no token is required"),
			set(&c.Access.Cert, "tls-cert", "", "certificate (PEM) of HTTP and gRPC; empty: no TLS"),
			set(&c.Access.Key, "tls-key", "", "private key (PEM) of --tls-cert"),
			set(&c.Access.ClientCA, "tls-client-ca", "",
				"CA certificates (PEM) to verify clients with; a client without a certificate is refused"),
			set(&c.Access.Open, "open", false,
				"allow addresses that other machines can reach, without tokens or client certificates"),
			set(&c.Access.MaxConnections, "max-connections", 20000,
				"maximum connections to one address at a time; more wait"),
		}},
		{"grpc", []setting{
			set(&c.GRPC.Addr, "grpc", "127.0.0.1:8082",
				"address of the gRPC interface (Envoy's rate limit service, health, reflection); empty: none"),
			set(&c.GRPC.Headers, "rls-headers", false,
				"add RateLimit, RateLimit-Policy, Retry-After and X-RateLimit-* to Envoy's answers to "+
					"its clients"),
			set(&c.GRPC.Names.Limit, "rls-limit-header", "",
				"name of a header for the nearest limit, instead of those of --rls-headers; empty: none"),
			set(&c.GRPC.Names.Remaining, "rls-remaining-header", "", "name of a header for what remains of that limit"),
			set(&c.GRPC.Names.Reset, "rls-reset-header", "",
				"name of a header for the seconds until some of that limit is free again"),
			set(&c.GRPC.Metadata, "rls-metadata", false,
				"add the request and the limits' metadata to the dynamic metadata of all answers to "+
					"Envoy"),
			set(&c.GRPC.Metrics, "rls-metrics", false,
				"count hits by limit under the metric names of envoyproxy/ratelimit (ratelimit_service_…)"),
			atMost(100, set(&c.GRPC.NearLimit, "rls-near-limit", 80,
				"percent of a limit above which --rls-metrics counts hits as near it")),
			set(&c.GRPC.MaxStreams, "grpc-max-streams", 1000,
				"maximum calls at a time on one gRPC connection; more wait"),
			set(&c.GRPC.MaxAge, "grpc-max-age", 30*time.Minute,
				"close a gRPC connection at this age, after its calls have ended: clients then reconnect "+
					"and find new servers behind a load balancer"),
			set(&c.GRPC.MaxIdle, "grpc-max-idle", 5*time.Minute,
				"close a gRPC connection after this time without calls"),
		}},
		{"checks", []setting{
			set(&c.Checks.Extractors, "extractors", "",
				"file of extractors (YAML): how GET /v1/check?extractor=NAME takes the key from a proxy's "+
					"request"),
			set(&c.Checks.Timeout, "check-timeout", 250*time.Millisecond,
				"deadline of a check; then the rule's on_error decides"),
			set(&c.Checks.Instances, "instances", 1,
				"number of server processes; under on_error: local each admits limit / instances, "+
					"rounded down, at least 1"),
			zero(set(&c.Checks.Denials, "denial-cache", 10_000,
				"how many denied keys to cache, so repeats skip Redis; 0: only keys whose rule has lease")),
			zero(set(&c.Checks.MaxBacklog, "max-backlog", 0,
				"answer POST /v1/events with 503 if the oldest unread event is older than this; 0: half "+
					"the retention")),
			set(&c.Checks.Bouncers, "bouncer-rules", "",
				"rules, separated by commas: GET /v1/decisions gives their throttled ip: keys, and blocked ones, to "+
					"CrowdSec's bouncers; override: only blocked keys; empty: no such path"),
		}},
		{"caller", []setting{
			secret(set(&c.Caller.Token, "token", "",
				"token for the server at --http; prefer the environment, as other users of the machine "+
					"can read a command line")),
			set(&c.Caller.TLS.ca, "http-ca", "", "CA certificates (PEM) to verify the server at --http with"),
			set(&c.Caller.TLS.cert, "http-cert", "", "client certificate (PEM) for the server at --http"),
			set(&c.Caller.TLS.key, "http-key", "", "private key (PEM) of --http-cert"),
		}},
		{"stream", []setting{
			set(&c.Stream.Prefix, "prefix", "sc", "prefix of all Redis keys, NATS subjects and streams"),
			atMost(stream.MaxPartitions, set(&c.Stream.Partitions, "partitions", stream.DefaultPartitions,
				"number of partitions, fixed for the life of a prefix")),
			set(&c.Stream.Retention, "retention", 10*time.Minute,
				"how long events are kept, and so how long workers may be away without losing one"),
		}},
		{"work", []setting{
			atMost(consumers.LargestBatch, set(&c.Work.Batch, "batch", 1000,
				fmt.Sprintf("maximum events to count in one step, and to read of one partition, up to %d",
					consumers.LargestBatch))),
			zero(set(&c.Work.ReadPause, "read-pause", 300*time.Microsecond,
				"longest wait between reads under load; larger batches cost Redis less; 0: none")),
			set(&c.Work.MinIdle, "min-idle", 10*time.Second,
				"how long a silent worker keeps an event before another one takes it over"),
		}},
		{"sinks", []setting{
			set(&c.Sinks, "sinks", "", "file of alert sinks (YAML): webhooks, Alertmanager, Slack; empty: none"),
		}},
		{"process", []setting{
			set(&c.Stop, "drain-timeout", 5*time.Second, "maximum time for a clean stop"),
			set(&c.Log, "log-level", slog.LevelInfo, "lowest level to log: debug, info, warn or error"),
			set(&c.Debug, "debug", "",
				"address on this machine, such as 127.0.0.1:6060, for Go profiles (/debug/pprof/) and "+
					"the log level (/debug/log-level); empty: none"),
		}},
	}
}

// validate fills in settings that depend on others, and returns all errors at once.
func (c *Config) validate() error {
	var errs []error
	for _, s := range c.used {
		errs = append(errs, s.validate())
	}
	if c.HTTP == "" {
		errs = append(errs, Wrong("http", "", "expected HOST:PORT; only --grpc can be empty"))
	}
	if r := c.Stream.Retention; r > 0 && r < stream.MinRetention {
		errs = append(errs, Wrong("retention", shown(&r), fmt.Sprintf("expected at least %s", stream.MinRetention)))
	}
	if c.Checks.MaxBacklog > c.Stream.Retention {
		errs = append(errs, Wrong("max-backlog", shown(&c.Checks.MaxBacklog), "expected no more than --retention, "+
			"after which events are lost"))
	}
	c.Checks.MaxBacklog = cmp.Or(c.Checks.MaxBacklog, c.Stream.Retention/2)
	if c.NATS.Creds != "" && c.NATS.NKey != "" {
		errs = append(errs, Blame("nats-creds", errors.New("give --nats-creds or --nats-nkey, not both")))
	}
	if _, err := stream.NewKeys(c.Stream.Prefix, 1); err != nil {
		errs = append(errs, Blame("prefix", err))
	}
	for _, h := range [][2]string{{"rls-limit-header", c.GRPC.Names.Limit},
		{"rls-remaining-header", c.GRPC.Names.Remaining}, {"rls-reset-header", c.GRPC.Names.Reset}} {
		if h[1] != "" && !httpguts.ValidHeaderFieldName(h[1]) {
			errs = append(errs, Wrong(h[0], h[1], "expected the name of a header"))
		}
	}
	errs = append(errs, Blame("redis", validPort(c.Redis.URL)), Blame("nats", validNATS(c.NATS.URL)))
	return errors.Join(errs...)
}
