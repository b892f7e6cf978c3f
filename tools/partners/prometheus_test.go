package partners

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Prometheus scrapes each metric that the documentation lists, loads deploy/alerts.yml, and fires its alerts: one
// about streamcounter's counts, and one about a process that is down.
func TestPrometheus(t *testing.T) {
	redis := streamtest.OwnRedis(t)
	client := streamtest.Connect(t, redis.URL())
	testkit.Must(t, client.Set(t.Context(), "sc:{1}:events", "foreign", 0).Err()) // the partition is quarantined
	limiter := streamcounter(t, nil, "dev", "--redis", redis.URL(), "--http", "127.0.0.1:0", "--grpc", "",
		"--nats", fmt.Sprintf("embedded:%d", testkit.FreePort(t)),
		"--rules", testkit.WriteFile(t, "rules.yml",
			"rules: [{name: api, match: '*', windows: [{limit: 3, per: 1h}]}]"),
		"--sinks", testkit.WriteFile(t, "sinks.yml", `sinks: [{name: chat, type: slack, url: "http://127.0.0.1:1"}]`),
		"--tokens", testkit.WriteFile(t, "tokens.yml", `tokens:
  - {name: prometheus, token: PROMETHEUS-0123456789, scopes: [read]}
  - {name: operator, token: OPERATOR-0123456789, scopes: [check, append, admin, read]}`))
	target := httpOf(limiter)
	addr := testkit.FreeAddr(t)
	start(t, nil, programOf(t, "prometheus"), "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+addr,
		"--config.file="+testkit.WriteFile(t, "prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%s]
scrape_configs:
  - job_name: streamcounter
    authorization: {credentials: PROMETHEUS-0123456789}
    static_configs: [{targets: [%q]}]
`, absolute(t, "../../deploy/alerts.yml"), target)))

	api := "http://" + addr + "/api/v1/"
	var up struct {
		ActiveTargets []struct{ Health, LastError string }
	}
	streamtest.Eventually(t, "Prometheus scrapes", func() (bool, string) {
		err := read(api+"targets", &up)
		return err == nil && len(up.ActiveTargets) == 1 && up.ActiveTargets[0].Health == "up", fmt.Sprint(up, err)
	})
	for range 5 { // the fourth one is denied
		do(t, "POST", "http://"+target+"/v1/check", `{"key":"user:1"}`)
		do(t, "POST", "http://"+target+"/v1/events", `[{"key":"user:2","count":4}]`)
	}
	if resp, err := http.Get("http://" + target + "/v1/check?key=user:1"); err != nil || resp.StatusCode != 401 {
		t.Errorf("without a token: %v, %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	lacking := slices.Collect(maps.Keys(testkit.DocumentedMetrics(t, "../../docs/metrics.md")))
	streamtest.Eventually(t, "Prometheus has each metric", func() (bool, string) {
		var names []string
		if err := read(api+"label/__name__/values", &names); err != nil {
			return false, err.Error()
		}
		lacking = slices.DeleteFunc(lacking, func(name string) bool {
			return slices.Contains(names, name) || slices.Contains(names, name+"_bucket")
		})
		return len(lacking) == 0, fmt.Sprintf("it lacks %v", lacking)
	})

	testkit.Must(t, client.Do(t.Context(), "XADD", "sc:{0}:events", "*", "count", 1).Err()) // an event without a key
	firing(t, api, "StreamcounterDeadLetters")
	limiter.stop()
	firing(t, api, "StreamcounterDown")
}

// firing waits until an alert of deploy/alerts.yml fires, and checks that no rule of the file fails.
func firing(t testing.TB, api, name string) {
	t.Helper()
	var got struct {
		Groups []struct {
			Rules []struct{ Name, State, Health, LastError string }
		}
	}
	streamtest.Eventually(t, name+" fires", func() (bool, string) {
		if err := read(api+"rules?type=alert", &got); err != nil {
			return false, err.Error()
		}
		state := "no such rule"
		for _, g := range got.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.Name == name {
					state = r.State
				}
			}
		}
		return state == "firing", state
	})
	if n := len(got.Groups[0].Rules); n < 15 {
		t.Errorf("%d rules were loaded", n)
	}
}

// read reads the data in an answer of Prometheus.
func read(url string, data any) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status string
		Data   any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s, %w", url, resp.Status, err)
	}
	return nil
}
