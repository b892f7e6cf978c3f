package settings

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The order of precedence: flag, variable, the file of a secret, the command's own default, the default of the table.
func TestConfigIsDecodedOnce(t *testing.T) {
	file := testkit.WriteFile(t, "nats", "nats://from-file\n")
	c := New()
	c.HTTP = "127.0.0.1:8081"
	cmd := &cobra.Command{Use: "x"}
	c.Flags(cmd, "redis", "nats", "http", "stream", "process", "max-backlog")
	if err := cmd.Flags().Parse([]string{"--partitions", "4"}); err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{
		"STREAMCOUNTER_PARTITIONS": "8", "STREAMCOUNTER_RETENTION": "1m", "STREAMCOUNTER_NATS_FILE": file,
		"STREAMCOUNTER_PREFIX": "", "STREAMCOUNTER_LOG_LEVEL": "warn",
	}
	lookUp := func(name string) (string, bool) { value, ok := environment[name]; return value, ok }
	testkit.Must(t, c.load(cmd.Flags(), lookUp))
	have := []any{c.Stream.Partitions, shown(&c.Stream.Retention), c.NATS.URL, c.Redis.URL, c.Stream.Prefix, c.HTTP,
		shown(&c.Log),
		shown(&c.Checks.MaxBacklog)}
	want := []any{4, "1m", "nats://from-file", "redis://127.0.0.1:6379", "sc", "127.0.0.1:8081", "warn", "30s"}
	if !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

// Each error names flag, variable and value, and says what to write; errors that are found together are reported
// together.
func TestConfigErrors(t *testing.T) {
	for _, x := range []struct{ args, env, want string }{
		{"--partitions many", "", `--partitions (STREAMCOUNTER_PARTITIONS) is "many": expected a whole number`},
		{"", "PARTITIONS=many", `--partitions (STREAMCOUNTER_PARTITIONS) is "many": expected a whole number`},
		{"--partitions -1", "",
			`--partitions (STREAMCOUNTER_PARTITIONS) is "-1": expected a whole number of at least 1`},
		{"--partitions 5000", "", `--partitions (STREAMCOUNTER_PARTITIONS) is "5000": expected at most 4096`},
		{"--retention 10", "",
			`--retention (STREAMCOUNTER_RETENTION) is "10": expected a duration such as 250ms`},
		{"--retention 0", "", `--retention (STREAMCOUNTER_RETENTION) is "0s": expected a duration`},
		{"--max-backlog -1s", "", `--max-backlog (STREAMCOUNTER_MAX_BACKLOG) is "-1s": expected a duration`},
		{"--max-backlog 11m", "",
			`--max-backlog (STREAMCOUNTER_MAX_BACKLOG) is "11m": expected no more than --retention`},
		{"--open=perhaps", "", `--open (STREAMCOUNTER_OPEN) is "perhaps": expected true or false`},
		{"", "LOG_LEVEL=loud", `--log-level (STREAMCOUNTER_LOG_LEVEL) is "loud": expected debug, info, warn or error`},
		{"--prefix A", "", `--prefix (STREAMCOUNTER_PREFIX): prefix "A": expected`},
		{"--redis embedded:x", "", `--redis (STREAMCOUNTER_REDIS): expected embedded or embedded:PORT`},
		{"--batch 0 --min-idle 0", "", `--min-idle (STREAMCOUNTER_MIN_IDLE) is "0s"`},
		{"--batch 0 --min-idle 0", "", `--batch (STREAMCOUNTER_BATCH) is "0"`},
		{"--batch 10001", "", `--batch (STREAMCOUNTER_BATCH) is "10001": expected at most 10000`},
		{"--retenton 5m", "", `unknown flag: --retenton; did you mean --retention?`},
		{"--max-backlog -1s", "", `is "-1s": expected a duration of at least 0 such as 250ms`},
		{"--min-idle 0", "", `is "0s": expected a duration above zero such as 250ms`},
		{"--denial-cache -1", "", `is "-1": expected a whole number of at least 0`},
		{"", "TOKEN_FILE=/dev/null", `STREAMCOUNTER_TOKEN_FILE: the file /dev/null is empty`},
		{"", "TOKEN=t STREAMCOUNTER_TOKEN_FILE=/none", "STREAMCOUNTER_TOKEN and STREAMCOUNTER_TOKEN_FILE are both set"},
		{"--rls-near-limit 101", "", `--rls-near-limit (STREAMCOUNTER_RLS_NEAR_LIMIT) is "101": expected at most 100`},
		{"", "TOKEN_FILE=/none", `STREAMCOUNTER_TOKEN_FILE: open /none: no such file`},
	} {
		c := New()
		cmd := &cobra.Command{Use: "x"}
		c.Flags(cmd, "redis", "listen", "caller", "stream", "work", "process", "max-backlog", "denial-cache",
			"rls-near-limit")
		err := cmd.Flags().Parse(strings.Fields(x.args))
		if err == nil {
			environment := map[string]string{}
			for _, one := range strings.Fields(envPrefix + x.env) {
				name, value, _ := strings.Cut(one, "=")
				environment[name] = value
			}
			err = c.load(cmd.Flags(), func(s string) (string, bool) { value, ok := environment[s]; return value, ok })
		} else {
			err = FlagError(err, cmd.Flags())
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %s: %v, want %s", x.args, x.env, err, x.want)
		}
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	links := []string{ // of services "streamcounter" and "streamcounter-redis"
		"STREAMCOUNTER_PORT=tcp://10.0.0.1:8080", "STREAMCOUNTER_SERVICE_HOST=10.0.0.1",
		"STREAMCOUNTER_SERVICE_PORT=8080",
		"STREAMCOUNTER_SERVICE_PORT_GRPC=8082", "STREAMCOUNTER_PORT_8080_TCP=tcp://10.0.0.1:8080",
		"STREAMCOUNTER_PORT_8080_TCP_PROTO=tcp", "STREAMCOUNTER_REDIS_SERVICE_HOST=10.0.0.2",
		"STREAMCOUNTER_REDIS_PORT_6379_TCP_ADDR=10.0.0.2",
	}
	known := []string{"STREAMCOUNTER_HTTP=x", "STREAMCOUNTER_REDIS_FILE=x", "PATH=x", "STREAMCOUNTERS=x"}
	if got := unknownVariables(slices.Concat(links, known)); got != nil {
		t.Errorf("warns of %q", got)
	}
	got := unknownVariables([]string{"STREAMCOUNTER_HTPP=:80", "STREAMCOUNTER_HTTP_FILE=x", "STREAMCOUNTER_NONSENSE=1"})
	want := []string{"STREAMCOUNTER_HTPP is not a setting and is ignored; did you mean STREAMCOUNTER_HTTP?",
		"STREAMCOUNTER_HTTP_FILE is", "STREAMCOUNTER_NONSENSE is not a setting and is ignored"}
	for i := range want {
		if len(got) != len(want) || !strings.Contains(got[i], want[i]) {
			t.Fatalf("have %q, want %q", got, want)
		}
	}
}
