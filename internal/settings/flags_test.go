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
