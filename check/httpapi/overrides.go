package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
)

// overrideBody is the JSON body that sets an api.Override.
type overrideBody struct {
	Block   bool                 `json:"block,omitempty"`
	Exempt  bool                 `json:"exempt,omitempty"`
	Rule    string               `json:"rule,omitempty"`
	Windows []api.OverrideWindow `json:"windows,omitempty"`
	Only    bool                 `json:"only,omitempty"`
	Until   *string              `json:"until,omitempty"`    // a time by RFC 3339, or a date: its beginning, UTC
	UntilMs *int64               `json:"until_ms,omitempty"` // or the same in ms since 1970
	For     *string              `json:"for,omitempty"`      // or how long from now, as 1h
	Reason  string               `json:"reason,omitempty"`
}

// override returns the override to set, and how long it lasts if the body has For.
func (b overrideBody) override() (o api.Override, lasts time.Duration, err error) {
	o = api.Override{Block: b.Block, Exempt: b.Exempt, Rule: b.Rule, Windows: b.Windows, Only: b.Only,
		Reason: b.Reason}
	switch {
	case b.Until != nil && (b.UntilMs != nil || b.For != nil), b.UntilMs != nil && b.For != nil:
		return o, 0, fmt.Errorf(`%w: it has several of "until", "until_ms" and "for", expected one`, api.ErrBadOverride)
	case b.UntilMs != nil:
		if o.UntilMs = *b.UntilMs; o.UntilMs < 1 {
			return o, 0, fmt.Errorf("%w: until_ms: %d, expected milliseconds since 1970", api.ErrBadOverride, o.UntilMs)
		}
	case b.For != nil:
		if lasts, err = check.ParseSpan(*b.For); err != nil || lasts < time.Millisecond {
			return o, 0, fmt.Errorf("%w: for: %s, expected a span of time such as 90s, 1h or 7d, up to 100 years",
				api.ErrBadOverride, api.Shorten(*b.For))
		}
	case b.Until != nil:
		at, err := time.Parse(time.RFC3339, *b.Until)
		if err != nil {
			at, err = time.Parse(time.DateOnly, *b.Until)
		}
		if err != nil || at.UnixMilli() < 1 {
			return o, 0, fmt.Errorf("%w: until: %s, expected a time such as 2026-12-01T09:00:00Z, or a date",
				api.ErrBadOverride, api.Shorten(*b.Until))
		}
		o.UntilMs = at.UnixMilli()
	}
	return o, lasts, nil
}

func (s *Server) putOverride(w http.ResponseWriter, r *http.Request) error {
	key, pattern, err := api.ParseTarget(rest(r, overridesPath))
	if err != nil {
		return err
	}
	var body overrideBody
	if err := s.readJSON(w, r, &body); err != nil {
		return err
	}
	one, lasts, err := body.override()
	if err != nil {
		return err
	}
	dryRun, err := boolOf(r.URL.Query(), "dry_run") // it sets nothing
	if err != nil {
		return err
	}
	one.SetTarget(key, pattern)
	one.By = access.Caller(r.Context())
	ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
	defer cancel()
	var out api.OverrideSet
	if dryRun {
		out, err = s.checks.PreviewOverride(ctx, one, lasts)
	} else {
		out, err = s.checks.SetOverride(ctx, one, lasts)
	}
	return respond(w, out, err)
}

// throttles reports whether a decision can name this rule: it is one of the rules, or the rule that blocks name.
func (s *Server) throttles(rule string) bool {
	return rule == api.OverrideRule || s.checks.HasRule(rule)
}

// hideCaller removes who set an override, unless the reader is an admin. The history leaves that out too.
func hideCaller(ctx context.Context, set api.SetByOperator) {
	if set.Override != nil && !access.IsAdmin(ctx) {
		set.Override.By = ""
	}
}

// boolOf reads a parameter that is true or false; it is false if it is missing.
func boolOf(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	value, err := strconv.ParseBool(q.Get(name))
	if err != nil {
		err = fmt.Errorf("%w: %s=%s, expected true or false", api.ErrBadRequest, name, api.Shorten(q.Get(name)))
	}
	return value, err
}

func (s *Server) getOverride(w http.ResponseWriter, r *http.Request) error {
	key, pattern, err := api.ParseTarget(rest(r, overridesPath))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
	defer cancel()
	one, there, err := s.checks.Override(ctx, key, pattern)
	if err == nil && !there {
		err = fmt.Errorf("%w: of %s", api.ErrNoOverride, api.Shorten(key+pattern))
	}
	return respond(w, one, err)
}

func (s *Server) deleteOverride(w http.ResponseWriter, r *http.Request) error {
	key, pattern, err := api.ParseTarget(rest(r, overridesPath))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
	defer cancel()
	had, err := s.checks.ClearOverride(ctx, key, pattern, access.Caller(r.Context()),
		r.URL.Query().Get("reason"))
	out := clearedAnswer{Cleared: had}
	out.Key, out.Pattern, out.Network = api.SplitTarget(key, pattern)
	return respond(w, out, err)
}

func (s *Server) listOverrides(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	n, err := numberOf(q, "limit", 100, 1000)
	if err != nil {
		return err
	}
	key, pattern := "", ""
	if text := q.Get("after"); text != "" {
		if key, pattern, err = api.ParseTarget(text); err != nil {
			return err
		}
	}
	return s.list(w, r, func(context.Context) (any, error) {
		list := s.checks.Overrides(n, key, pattern)
		page := api.Overrides{Overrides: list}
		if len(list) == n {
			page.Next = list[n-1].Target()
		}
		return page, nil
	})
}

// numberOf reads a parameter that is a number from 1 to most. It returns def if the parameter is missing.
func numberOf(q url.Values, name string, def, most int) (int, error) {
	if !q.Has(name) {
		return def, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%w: %s=%s, expected a whole number from 1 to %d", api.ErrBadRequest, name,
			api.Shorten(q.Get(name)), most)
	}
	return n, nil
}
