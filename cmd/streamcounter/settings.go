package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// settings is the one table of what can be set: flag, environment variable
// (STREAMCOUNTER_ and the name) and the docs' table come from it.
var settings = []setting{
	{"redis", "redis://127.0.0.1:6379", "Redis: a URL (redis:// or rediss://), several separated by commas for a Cluster, redis+sentinel://HOST:PORT,HOST:PORT/MASTER (rediss+sentinel:// with TLS), or embedded[:PORT]"},
	{"redis-ca", "", "certificates (PEM) of who signed Redis's; empty: those of the system"},
	{"redis-cert", "", "certificate (PEM) that is shown to Redis"},
	{"redis-key", "", "its private key (PEM)"},
	{"nats", "nats://127.0.0.1:4222", "NATS: a URL, several separated by commas, or embedded[:PORT]"},
	{"nats-creds", "", "credentials file of a NATS user (JWT and seed)"},
	{"nats-nkey", "", "seed file of a NATS user who is known by an NKey"},
	{"nats-ca", "", "certificates (PEM) of who signed NATS's; it is then spoken to by TLS alone"},
	{"nats-cert", "", "certificate (PEM) that is shown to NATS"},
	{"nats-key", "", "its private key (PEM)"},
	{"nats-store", "", "where an embedded NATS keeps its streams; empty: a temporary directory"},
	{"nats-replicas", "1", "replicas of the JetStream streams where they are created"},
	{"nats-monitor", "", "URL of NATS's monitoring port, which alone tells doctor how often the server syncs (http://HOST:8222)"},
	{"rules", "", "rules file (YAML)"},
	{"rls-config", "", "limits of Envoy's rate limit service: a YAML file of envoyproxy/ratelimit, or a directory of them; the same for serve and work"},
	{"rls-tag", "", "key of the descriptor entry whose value chooses the partition, so that descriptors that share it are decided in one step; the same for serve and work"},
	{"rls-algorithm", "sliding-log", "algorithm of all limits of --rls-config; the same for serve and work"},
	{"http", "127.0.0.1:8080", "address of the HTTP interface, also of /metrics"},
	{"grpc", "127.0.0.1:8082", "address of the gRPC interface (Envoy's rate limit service, health, reflection); empty: none"},
	{"rls-headers", "false", "add RateLimit, RateLimit-Policy, Retry-After and X-RateLimit-* to what Envoy sends its clients"},
	{"tokens", "", "file of bearer tokens and their scopes (YAML); empty: none is asked for"},
	{"tls-cert", "", "certificate (PEM) of HTTP and gRPC; empty: no TLS"},
	{"tls-key", "", "its private key (PEM)"},
	{"tls-client-ca", "", "certificates (PEM) of who signs clients'; a client without one is refused"},
	{"open", "false", "listen on an address that others can reach, though neither tokens nor client certificates keep them out"},
	{"max-connections", "20000", "most connections at a time to one address; more wait"},
	{"extractors", "", "file of extractors (YAML): how GET /v1/check?extractor=NAME takes the key from a proxy's request"},
	{"token", "", "token for the server at --http; better in the environment, as a command line can be seen by others"},
	{"http-ca", "", "certificates (PEM) of who signed those of the server at --http"},
	{"http-cert", "", "certificate (PEM) that is shown to the server at --http"},
	{"http-key", "", "its private key (PEM)"},
	{"prefix", "sc", "prefix of all Redis keys, NATS subjects and streams"},
	{"partitions", "16", "number of partitions, fixed for the life of a prefix"},
	{"retention", "10m", "how long events are kept: how long workers may be away without losing one"},
	{"max-backlog", "", "age of the oldest unread event above which POST /v1/events answers 503; empty: half the retention"},
	{"check-timeout", "250ms", "deadline of a check; after it the rule's on_error decides"},
	{"batch", "1000", "most events of one fold"},
	{"min-idle", "10s", "how long an event is held by a silent worker before another takes it over"},
	{"drain-timeout", "5s", "most time for a clean stop"},
	{"log-level", "info", "debug, info, warn or error"},
}

type setting struct{ name, def, usage string }

func (s setting) env() string {
	return "STREAMCOUNTER_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

func lookUp(name string) setting {
	for _, s := range settings {
		if s.name == name {
			return s
		}
	}
	panic("no setting " + name) // a name in this program's own code
}

// use gives a command some settings as flags. defaults replaces a setting's own
// default for this command: "name=value".
func use(cmd *cobra.Command, names []string, defaults ...string) {
	own := map[string]string{}
	for _, d := range defaults {
		name, value, _ := strings.Cut(d, "=")
		own[name] = value
	}
	for _, name := range names {
		s := lookUp(name)
		def := s.def
		if v, ok := own[name]; ok {
			def = v
		}
		if s.def == "false" { // as --open, or --open=true
			cmd.Flags().Bool(name, def == "true", s.usage+" ["+s.env()+"]")
			continue
		}
		cmd.Flags().String(name, def, s.usage+" ["+s.env()+"]")
	}
}

// fromEnvironment fills in the flags that were not given.
func fromEnvironment(cmd *cobra.Command) error {
	for _, s := range settings {
		f := cmd.Flags().Lookup(s.name)
		if f == nil || f.Changed {
			continue
		}
		value, set, err := s.lookUpEnv()
		if err != nil {
			return err
		}
		if !set || value == "" {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("%s=%q: %w", s.env(), value, err)
		}
		f.Changed = true
	}
	return nil
}

// secrets are the settings that can hold a password. Each can also stand in a
// file, as orchestrators hand them out: STREAMCOUNTER_REDIS_FILE names it.
var secrets = []string{"redis", "nats", "token"}

func (s setting) lookUpEnv() (value string, set bool, err error) {
	if value, set = os.LookupEnv(s.env()); set || !slices.Contains(secrets, s.name) {
		return value, set, nil
	}
	path := os.Getenv(s.env() + "_FILE")
	if path == "" {
		return "", false, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", false, fmt.Errorf("%s_FILE: %w", s.env(), err)
	}
	return strings.TrimSpace(string(content)), true, nil
}

// options reads flags of settings; the first bad one is kept in err.
type options struct {
	cmd *cobra.Command
	err error
}

func (o *options) text(name string) string {
	f := o.cmd.Flags().Lookup(name)
	if f == nil {
		return lookUp(name).def
	}
	return f.Value.String()
}

func (o *options) number(name string) int {
	n, err := strconv.Atoi(o.text(name))
	if err != nil || n < 1 {
		o.fail(name, "expected a whole number of at least 1")
	}
	return n
}

func (o *options) duration(name string) time.Duration {
	d, err := time.ParseDuration(o.text(name))
	if err != nil || d <= 0 {
		o.fail(name, "expected a duration above zero such as 250ms, 10s or 5m")
	}
	return d
}

func (o *options) flag(name string) bool {
	b, err := strconv.ParseBool(o.text(name))
	if err != nil {
		o.fail(name, "expected true or false")
	}
	return b
}

// check reads everything once, so that a typo ends the start before anything runs.
func (o *options) check() error {
	for _, name := range []string{"partitions", "nats-replicas", "batch"} {
		o.number(name)
	}
	for _, name := range []string{"retention", "check-timeout", "min-idle", "drain-timeout"} {
		o.duration(name)
	}
	o.flag("rls-headers")
	o.checkAccess()
	if o.maxBacklog() > o.duration("retention") {
		o.fail("max-backlog", "expected no more than --retention, after which events are lost")
	}
	return o.err
}

// maxBacklog is by default half the retention: there is still time to do something.
func (o *options) maxBacklog() time.Duration {
	if o.text("max-backlog") == "" {
		return o.duration("retention") / 2
	}
	return o.duration("max-backlog")
}

func (o *options) fail(name, why string) {
	if o.err == nil {
		o.err = fmt.Errorf("--%s (%s) is %q: %s", name, lookUp(name).env(), o.text(name), why)
	}
}

// blame says which flag an error came from.
func blame(name string, err error) error {
	return fmt.Errorf("--%s (%s): %w", name, lookUp(name).env(), err)
}
