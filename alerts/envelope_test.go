package alerts_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The message is a contract with subscribers in other languages, so testdata/throttle.txt spells it out: CloudEvents
// 1.0 in binary mode, and the headers for JetStream. It expires after 65,977 ms, which are rounded up.
func TestThrottleMessage(t *testing.T) {
	tr := api.Transition{
		ID: "whatever it had", Rule: "api", Key: "10.0.0.1", State: api.StateThrottled, Level: 100, Limit: 10,
		WindowMs: 60_000,
		Used:     12, Version: 1_700_000_000_123, AtMs: 1_700_000_000_123, SinceMs: 1_700_000_000_100,
		UntilMs: 1_700_000_060_100, ExpiresMs: 1_700_000_066_100,
	}
	m, err := alerts.Message("sc", tr)
	testkit.Must(t, err)
	text := "subject: " + m.Subject + "\n"
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		text += fmt.Sprintf("%s: %s\n", name, m.Header[name])
	}
	var body bytes.Buffer
	testkit.Must(t, json.Indent(&body, m.Data, "", "  "))
	testkit.Golden(t, "testdata/throttle.txt", text+body.String()+"\n")
}

// JetStream accepts whole seconds, at least one. A decision must not be removed before it expires, by the clock that
// wrote it. An alert stays for as long as its stream has it.
func TestMessageOfEachState(t *testing.T) {
	const at = 1_700_000_000_000
	const throttled, released = "io.streamcounter.throttle.throttled", "io.streamcounter.throttle.released"
	decision := throttle("a", api.StateThrottled, at)
	for _, c := range []struct {
		tr            api.Transition
		lasts         int64 // in ms
		subject, kind string
		ttl           string
	}{
		{decision, 70_000, "sc.throttle.api.a", throttled, "1m10s"},
		{decision, -5, "sc.throttle.api.a", throttled, "1s"},
		{decision, 999, "sc.throttle.api.a", throttled, "1s"},
		{decision, 1000, "sc.throttle.api.a", throttled, "1s"},
		{decision, 1001, "sc.throttle.api.a", throttled, "2s"},
		{decision, 31 * 24 * 3_600_000, "sc.throttle.api.a", throttled, "744h0m0s"},
		{throttle("a", api.StateReleased, at), 70_000, "sc.throttle.api.a", released, "1m0s"},
		{alert("a", api.StateRaised, at), 70_000, "sc.alert.api.80.a", "io.streamcounter.alert.raised", ""},
		{alert("a", api.StateCleared, at), 70_000, "sc.alert.api.80.a", "io.streamcounter.alert.cleared", ""},
		{throttle("a", api.StateRaised, at), 70_000, "sc.alert.api.100.a", "io.streamcounter.alert.raised", ""},
	} {
		c.tr.ExpiresMs = c.tr.AtMs + c.lasts
		m, err := alerts.Message("sc", c.tr)
		testkit.Must(t, err)
		_, has := m.Header["Nats-TTL"]
		if m.Subject != c.subject || m.Header["ce-type"][0] != c.kind || m.Header.Get("Nats-TTL") != c.ttl ||
			has != (c.ttl != "") {
			t.Errorf("%s for %d ms: subject %s, headers %v", c.tr.State, c.lasts, m.Subject, m.Header)
		}
	}
}
