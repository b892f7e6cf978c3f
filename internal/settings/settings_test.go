package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The table of settings in the docs is the one in config.go.
func TestSettingsAreDocumented(t *testing.T) {
	testkit.Section(t, "../../docs/settings.md", "settings", settingsTable())
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| flag | environment | default | meaning |\n|---|---|---|---|\n")
	for _, g := range New().groups {
		for _, s := range g.settings {
			def := ""
			if value := shown(s.field); value != "" && value != "0s" {
				def = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", s.name, EnvName(s.name), def, s.usage)
		}
	}
	return b.String()
}

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

// A story has flags and variables of the environment, and what comes of them: the address of Redis, warnings and
// errors. In ratelimit.txt the variables are those of envoyproxy/ratelimit.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(_ *testing.T, path, _ string, steps []string) (out []string) {
		for _, step := range steps {
			line, ok := strings.CutPrefix(step, "$ ")
			if !ok {
				continue // what came of it before
			}
			var args []string
			environment := map[string]string{}
			for word := range strings.FieldsSeq(line) {
				if name, value, ok := strings.Cut(word, "="); ok && name[0] != '-' {
					environment[name] = strings.ReplaceAll(value, `\x01`, "\x01")
				} else {
					args = append(args, word)
				}
			}
			out = append(append(out, step), read(strings.HasSuffix(path, "ratelimit.txt"), args, environment)...)
		}
		return out
	})
}

func read(ratelimit bool, args []string, environment map[string]string) (out []string) {
	c, cmd := New(), &cobra.Command{Use: "x"}
	for _, g := range c.groups {
		c.Flags(cmd, g.name)
	}
	look := func(name string) (string, bool) { value, ok := environment[name]; return value, ok }
	err := cmd.Flags().Parse(args)
	switch {
	case err != nil:
		err = FlagError(err, cmd.Flags())
	case ratelimit:
		var warnings []string
		if warnings, err = c.fromRatelimit(cmd.Flags(), look); err != nil {
			err = errors.New(AsSet(err.Error(), cmd.Flags()))
		}
		for _, w := range warnings {
			out = append(out, "warning: "+w)
		}
	default:
		err = c.load(cmd.Flags(), look)
	}
	if err != nil {
		return append(out, strings.Split(err.Error(), "\n")...)
	}
	return append(out, "--redis "+c.Redis.URL)
}
