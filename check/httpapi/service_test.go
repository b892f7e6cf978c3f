package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// counted returns the counters of the registry: name and labels → value.
func (w *world) counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := w.registry.Gather()
	testkit.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if c := m.GetCounter(); c != nil {
				got[strings.TrimPrefix(f.GetName(), "streamcounter_")+"{"+strings.Join(labels, " ")+"}"] = c.GetValue()
			}
		}
	}
	return got
}

// Every check counts once, under its rule and its outcome; no label holds a key.
func TestMetrics(t *testing.T) {
	server := streamtest.OwnRedis(t)
	w := newWorld(t, streamtest.Connect(t, server.Addr()), outageRules...) // it refuses, so that nobody waits
	for _, name := range []string{"allow", "shadow", "none"} {
		for range 3 {
			w.get(t, name+":1")
		}
	}
	w.do(t, "POST", "/v1/events", `[{"key":"a"},{"key":"b"},{"key":""}]`)
	server.Stop()
	for _, o := range []windows.OnError{windows.OnErrorAllow, windows.OnErrorDeny, windows.OnErrorLocal} {
		for range 3 {
			w.get(t, fmt.Sprint(o, ":1"))
		}
	}
	want := map[string]float64{
		"checks_total{outcome=allowed rule=allow}": 2, "checks_total{outcome=denied rule=allow}": 1,
		"checks_total{outcome=shadow_allowed rule=shadow}": 2, "checks_total{outcome=shadow_denied rule=shadow}": 1,
		"checks_total{outcome=allowed rule=}":            6, // three of a shadow rule alone
		"checks_total{outcome=error_allow rule=allow}":   3,
		"checks_total{outcome=error_deny rule=deny}":     3,
		"checks_total{outcome=local_allowed rule=local}": 2, "checks_total{outcome=local_denied rule=local}": 1,
		"events_appended_total{}": 2, "events_append_refused_total{}": 0, "events_append_unknown_total{}": 0,
		"http_busy_total{reason=listings}": 0, "http_busy_total{reason=memory}": 0,
	}
	if diff := cmp.Diff(want, w.counted(t)); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}
