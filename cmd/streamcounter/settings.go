package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// settings is the one table of what can be set: flag, environment variable
// (STREAMCOUNTER_ and the name) and the docs' table come from it.
var settings = []setting{
	{"redis", "redis://127.0.0.1:6379", "Redis: a URL (redis:// or rediss://), several separated by commas for a Cluster, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, or embedded[:PORT]"},
	{"nats", "nats://127.0.0.1:4222", "NATS: a URL, several separated by commas, or embedded[:PORT]"},
	{"nats-store", "", "where an embedded NATS keeps its streams; empty: a temporary directory"},
	{"nats-replicas", "1", "replicas of the JetStream streams where they are created"},
	{"nats-monitor", "", "URL of NATS's monitoring port, which alone tells doctor how often the server syncs (http://HOST:8222)"},
	{"rules", "", "rules file (YAML)"},
	{"http", "127.0.0.1:8080", "address of the HTTP interface, also of /metrics"},
	{"grpc", "127.0.0.1:8082", "address of the gRPC interface (Envoy's rate limit service, health, reflection); empty: none"},
	{"rls-headers", "false", "add RateLimit, RateLimit-Policy, Retry-After and X-RateLimit-* to what Envoy sends its clients: true or false"},
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
		cmd.Flags().String(name, def, s.usage+" ["+s.env()+"]")
	}
}

// fromEnvironment fills in the flags that were not given.
func fromEnvironment(cmd *cobra.Command) error {
	for _, s := range settings {
		f := cmd.Flags().Lookup(s.name)
		value, set := os.LookupEnv(s.env())
		if f == nil || f.Changed || !set || value == "" {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("%s=%q: %w", s.env(), value, err)
		}
		f.Changed = true
	}
	return nil
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
