package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

func TestRulesLoad(t *testing.T) {
	if _, err := windows.Load("rules.yml"); err != nil {
		t.Error(err)
	}
}

// Redis takes every setting of redis.conf, and has it afterwards.
func TestRedisTakesItsConfiguration(t *testing.T) {
	b, err := os.ReadFile("redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	want := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' || name == "dir" { // the test's own directory serves
			continue
		}
		want[name] = strings.Trim(value, `"`)
		args = append(append(args, "--"+name), strings.Fields(want[name])...)
		if want[name] == "" {
			args = append(args, "")
		}
	}
	if want["stream-node-max-bytes"] != "512" || want["maxmemory-policy"] != "noeviction" || want["appendonly"] != "yes" {
		t.Errorf("redis.conf says %v, want stream-node-max-bytes 512, maxmemory-policy noeviction, appendonly yes", want)
	}

	opts, err := redis.ParseURL(streamtest.OwnRedis(t, args...).URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	defer c.Close()
	for name, value := range want {
		if got, err := c.ConfigGet(t.Context(), name).Result(); err != nil || got[name] != value {
			t.Errorf("Redis has %s %q, %v; want %q", name, got[name], err, value)
		}
	}
}

// A metric that was renamed would leave its alert silent for ever.
func TestAlertsNameMetricsThatExist(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		source.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`streamcounter(_[a-z]+)+`).FindAllString(string(alerts), -1)
	if len(names) == 0 {
		t.Fatal("alerts.yml names no metric")
	}
	for _, name := range names {
		short := strings.TrimPrefix(name, "streamcounter_")
		if !strings.Contains(source.String(), `"`+name+`"`) && !strings.Contains(source.String(), `"`+short+`"`) {
			t.Errorf("alerts.yml asks for %s, which nothing counts", name)
		}
	}
}
