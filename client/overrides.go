package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/streamcounter/streamcounter/api"
)

// The overrides of operators, over HTTP with a token of the scope admin. A target is a key, or with * or ? a pattern;
// api.TargetOfKey returns the target of a key that has these characters itself. All of these calls may be sent again
// if their outcome is not known.

// SetOverride sets the override of a target: one of Block, Exempt, Rule and Windows, with UntilMs and Reason. It
// returns what is set, and the effect. If it cannot be set, the error wraps api.ErrBadOverride.
func (h *HTTP) SetOverride(ctx context.Context, target string, o api.Override) (set api.OverrideSet, err error) {
	o.Key, o.Pattern, o.Network, o.By, o.AtMs = "", "", "", "", 0 // the target, the token and Redis's clock say these
	err = h.ask(ctx, http.MethodPut, "/v1/overrides/"+url.PathEscape(target), o, &set)
	return set, err
}

// ClearOverride removes the override of a target. It returns false if there was none.
func (h *HTTP) ClearOverride(ctx context.Context, target, reason string) (bool, error) {
	path := "/v1/overrides/" + url.PathEscape(target)
	if reason != "" {
		path += "?reason=" + url.QueryEscape(reason)
	}
	var answer struct {
		Cleared bool `json:"cleared"`
	}
	err := h.ask(ctx, http.MethodDelete, path, nil, &answer)
	return answer.Cleared, err
}

// Override returns the override of a target. If there is none, the error wraps api.ErrNoOverride.
func (h *HTTP) Override(ctx context.Context, target string) (o api.Override, err error) {
	err = h.ask(ctx, http.MethodGet, "/v1/overrides/"+url.PathEscape(target), nil, &o)
	return o, err
}

// Overrides returns a page of up to n (1 to 1,000) overrides. after is Next of the page before, "" for the first.
func (h *HTTP) Overrides(ctx context.Context, n int, after string) (page api.Overrides, err error) {
	q := url.Values{"limit": {strconv.Itoa(n)}}
	if after != "" {
		q.Set("after", after)
	}
	err = h.ask(ctx, http.MethodGet, "/v1/overrides?"+q.Encode(), nil, &page)
	return page, err
}

// History returns up to n (1 to 1,000) entries of what happened to a target, the newest first: transitions, and
// changes of its override. before is "", or Next of the page before.
func (h *HTTP) History(ctx context.Context, target string, n int, before string) (out api.History, err error) {
	path := "/v1/history/" + url.PathEscape(target) + "?limit=" + strconv.Itoa(n)
	if before != "" {
		path += "&before=" + url.QueryEscape(before)
	}
	err = h.ask(ctx, http.MethodGet, path, nil, &out)
	return out, err
}
