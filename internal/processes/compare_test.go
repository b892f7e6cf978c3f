package processes

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// If processes have different rules, the metric shows it at once. The log has it once, with both sets of rules, when it
// has lasted for the grace time: a reload reaches one process before the other. That they agree again is logged too.
func TestDifferentRulesAreTold(t *testing.T) {
	var log testkit.Log
	a := NewAnnouncer(Config{Grace: time.Minute, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	const differ, agree = "processes run with different rules", "all processes run with the same rules again"
	seen := 0
	for i, x := range []struct {
		second      int64
		own, others string // fingerprints
		disagree    float64
		says        string
	}{
		{0, "aa", "aa", 0, ""},
		{1, "aa", "bb", 1, ""}, {60, "aa", "bb", 1, ""}, {61, "bb", "bb", 0, ""}, // a reload under way
		{70, "aa", "bb", 1, ""}, {130, "aa", "bb", 1, differ}, {200, "aa", "bb", 1, ""},
		{201, "aa", "bb bb", 2, ""}, {300, "aa", "bb bb", 2, ""}, // another process with the same rules
		{301, "aa", "bb cc", 2, ""}, {361, "aa", "bb cc", 2, differ},
		{362, "aa", "aa", 0, agree}, {363, "aa", "aa", 0, ""},
		{370, "aa", "bb", 1, ""}, {430, "aa", "bb", 1, differ},
	} {
		all := []Process{{Name: "work a", Fingerprint: x.own}}
		for _, fingerprint := range strings.Fields(x.others) {
			all = append(all, Process{Name: "work b", Fingerprint: fingerprint})
		}
		a.compare(x.own, all, 1000*x.second)
		said := log.String()[seen:]
		if seen += len(said); !strings.Contains(said, x.says) || (said == "") != (x.says == "") {
			t.Errorf("%d: the log has %q, want %q", i, said, x.says)
		}
		for _, part := range []string{"own=aa", "aa: work a", "bb: work b"} {
			if x.says == differ && !strings.Contains(said, part) {
				t.Errorf("%d: the log has %q, want %q in it", i, said, part)
			}
		}
		if n := testutil.ToFloat64(a.disagree); n != x.disagree {
			t.Errorf("%d: %g processes disagree, want %g", i, n, x.disagree)
		}
	}
}
