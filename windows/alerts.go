package windows

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/english"
)

var alertsOption = option{
	fields: []optionField{{"alerts", "list of percentages", "none",
		"1% to 99% of each window's limit. 100% is always one more level: throttled",
		func(d *document.Document, r *Rule) document.Setter {
			return document.Leaves(d, &r.Alerts, percentage)
		}}},
	validate: (*Rule).validateAlerts,
	state: func(r *Rule) string {
		if len(r.Alerts) == 0 {
			return "no alerts"
		}
		words := make([]string, len(r.Alerts))
		for i, p := range r.Alerts {
			words[i] = strconv.Itoa(p) + "%"
		}
		return "alerts at " + english.List(words, "and")
	},
	says:    func(r *Rule) bool { return len(r.Alerts) > 0 },
	follows: func(*Rule) string { return "alerts that no longer hold are released, at once" },
}

func (r *Rule) validateAlerts() *fault {
	for i, pct := range r.Alerts {
		at := fmt.Sprintf("alerts[%d]", i)
		if pct < 1 || pct > 99 {
			return faultf(at, "alert %d%%: want 1%% to 99%%; 100%% is always one more level", pct)
		}
		if j := slices.Index(r.Alerts[:i], pct); j >= 0 {
			return &fault{at, fmt.Sprintf("alerts[%d]", j), fmt.Sprintf("alert %d%%: want each percentage once", pct)}
		}
	}
	return nil
}

func percentage(n *document.Node) (int, error) {
	digits, _ := strings.CutSuffix(n.Value, "%")
	if v, err := strconv.Atoi(digits); err == nil && strconv.Itoa(v)+"%" == n.Value {
		return v, nil
	}
	return 0, errors.New("a whole percentage from 1% to 99%, as 80%")
}
