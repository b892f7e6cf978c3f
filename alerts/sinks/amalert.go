package sinks

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/windows"
)

// amAlert is an alert of Alertmanager's API v2.
type amAlert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// amAlert returns an alert as Alertmanager accepts it. A raised alert ends ResolveAfter after now, unless it is sent
// again; a cleared alert has ended.
func (s *Sink) amAlert(prefix string, t api.Transition, text string, since, now time.Time) amAlert {
	severity := "warning"
	if t.Level == api.LevelThrottled {
		severity = "critical"
	}
	a := amAlert{
		Labels: map[string]string{"alertname": "StreamcounterLimit", "prefix": prefix, "rule": t.Rule, "key": t.Key,
			"level":    strconv.Itoa(t.Level),
			"window":   windows.FormatDuration(time.Duration(t.WindowMs) * time.Millisecond),
			"severity": severity},
		Annotations: map[string]string{"summary": text, "id": t.ID},
		StartsAt:    time.UnixMilli(t.SinceMs).UTC(), EndsAt: now.Add(s.ResolveAfter).UTC(),
	}
	if t.Shadow {
		a.Labels["shadow"] = "true"
	}
	if !since.IsZero() {
		a.StartsAt = since.UTC()
	}
	if t.State == api.StateCleared {
		a.EndsAt = t.At()
		if now.Before(a.EndsAt) { // Redis's clock is ahead of ours
			a.EndsAt = now.UTC()
		}
	}
	if a.StartsAt.After(a.EndsAt) {
		a.StartsAt = a.EndsAt
	}
	return a
}

// alertsPath is the path at which Alertmanager accepts alerts, below its URL.
const alertsPath = "/api/v2/alerts"

func (s *Sink) postAlerts(ctx context.Context, list []amAlert) error {
	u, err := url.Parse(s.url)
	if err != nil {
		return redact.Error(err)
	}
	return s.post(ctx, u.JoinPath(alertsPath).String(), nil, list) // before a query, which a proxy may need
}
