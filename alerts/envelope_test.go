package alerts_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The message is a contract with subscribers in other languages, so the test spells it out: CloudEvents 1.0 in binary
// mode, and the headers for JetStream.
func TestThrottleMessage(t *testing.T) {
	tr := api.Transition{
		ID: "whatever it had", Rule: "api", Key: "10.0.0.1", State: api.StateThrottled, Level: 100, Limit: 10,
		WindowMs: 60_000,
		Used:     12, Version: 1_700_000_000_123, AtMs: 1_700_000_000_123, SinceMs: 1_700_000_000_100,
		UntilMs: 1_700_000_060_100, ExpiresMs: 1_700_000_066_100,
	}
	m, err := alerts.Message("sc", tr)
	testkit.Must(t, err)
	if want := "sc.throttle.api.~MTAuMC4wLjE"; m.Subject != want {
		t.Errorf("subject %s, want %s", m.Subject, want)
	}
	const id = "sc/throttle/api/100/60000/throttled/1700000000123/1700000060100/~MTAuMC4wLjE"
	headers := map[string][]string{
		"ce-specversion":     {"1.0"},
		"ce-id":              {id},
		"ce-source":          {"/streamcounter/sc"},
		"ce-type":            {"io.streamcounter.throttle.throttled"},
		"ce-time":            {"2023-11-14T22:13:20.123Z"},
		"ce-datacontenttype": {"application/json"},
		"Nats-Msg-Id":        {id},
		"Nats-TTL":           {"1m6s"}, // 65,977 ms until it expires, rounded up
	}
	if diff := cmp.Diff(headers, map[string][]string(m.Header)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	payload := map[string]any{
		"id": id, "rule": "api", "key": "10.0.0.1", "state": "throttled", "level": 100.0, "limit": 10.0,
		"window_ms": 60_000.0,
		"used":      12.0, "version": 1_700_000_000_123.0, "at_ms": 1_700_000_000_123.0,
		"since_ms": 1_700_000_000_100.0,
		"until_ms": 1_700_000_060_100.0, "expires_ms": 1_700_000_066_100.0,
	}
	var got map[string]any
	testkit.Must(t, json.Unmarshal(m.Data, &got))
	if diff := cmp.Diff(payload, got); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
}

func TestMessageOfEachState(t *testing.T) {
	const at = 1_700_000_000_000
	for _, c := range []struct {
		name    string
		tr      api.Transition
		subject string
		kind    string
		ttl     []string
	}{
		{"throttled", throttle("a", api.StateThrottled, at), "sc.throttle.api.a",
			"io.streamcounter.throttle.throttled", []string{"1m10s"}},
		{"released", throttle("a", api.StateReleased, at), "sc.throttle.api.a", "io.streamcounter.throttle.released",
			[]string{"1m0s"}},
		{"raised", alert("a", api.StateRaised, at), "sc.alert.api.80.a", "io.streamcounter.alert.raised", nil},
		{"cleared", alert("a", api.StateCleared, at), "sc.alert.api.80.a", "io.streamcounter.alert.cleared", nil},
		{"raised to 100", func() api.Transition {
			t := throttle("a", api.StateRaised, at)
			return t
		}(), "sc.alert.api.100.a", "io.streamcounter.alert.raised", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.tr.ExpiresMs = c.tr.AtMs + 70_000
			m, err := alerts.Message("sc", c.tr)
			testkit.Must(t, err)
			if m.Subject != c.subject || m.Header["ce-type"][0] != c.kind {
				t.Errorf("subject %s, type %s; want %s, %s", m.Subject, m.Header["ce-type"], c.subject, c.kind)
			}
			if diff := cmp.Diff(c.ttl, m.Header["Nats-TTL"]); diff != "" {
				t.Errorf("time to live (-want +got):\n%s", diff)
			}
		})
	}
}

// JetStream accepts whole seconds, at least one; a decision must not be removed before it expires.
func TestThrottleTTL(t *testing.T) {
	for ms, want := range map[int64]string{-5: "1s", 0: "1s", 1: "1s", 999: "1s", 1000: "1s", 1001: "2s",
		59_999: "1m0s", 31 * 24 * 3_600_000: "744h0m0s"} {
		tr := throttle("a", api.StateThrottled, 1000)
		tr.ExpiresMs = tr.AtMs + ms
		m, err := alerts.Message("sc", tr)
		testkit.Must(t, err)
		if got := m.Header.Get("Nats-TTL"); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
}
