package client

import (
	"context"
	"fmt"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// fallback answers by policy if nobody else did. Otherwise it returns the error.
func (c *Client) fallback(ctx context.Context, reqs []api.CheckRequest, why error) (api.ChecksAnswer, error) {
	if pause.Gone(ctx) != nil || !unanswered(why) {
		return api.ChecksAnswer{}, why
	}
	reqs, err := transport.ValidateAll(ctx, reqs) // an open breaker acts before the transport validates
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	rules := make([]*Rule, len(reqs)) // nil: not known
	for i, r := range reqs {
		rules[i] = c.known.rule(r.Key)
	}
	p := c.strictest(rules)
	if c.config.OnFallback != nil {
		c.config.OnFallback(p, why)
	}
	all := decide(p, reqs, rules, why)
	if p == Local {
		c.countLocally(&all, rules, reqs)
	}
	if p == Deny {
		return all, fmt.Errorf("%w: %w", api.ErrUnavailable, why)
	}
	if isRefusedCredentials(why) {
		return all, why
	}
	return all, nil
}

// strictest returns the common policy for keys of these rules.
func (c *Client) strictest(rules []*Rule) Policy {
	p := Allow
	for _, r := range rules {
		q := c.policy
		if q == 0 && r != nil {
			q = c.config.RulePolicies[r.Name]
		}
		if q == 0 {
			q = c.config.Policy
		}
		if q == Local && r == nil {
			q = c.config.UnknownKeys
		}
		switch {
		case q == Deny:
			p = Deny
		case q == Local && p == Allow:
			p = Local
		}
	}
	return p
}

// decide returns the answer of Allow or Deny, and the answer that Local begins with.
func decide(p Policy, reqs []api.CheckRequest, rules []*Rule, why error) api.ChecksAnswer {
	all := api.ChecksAnswer{Allowed: p != Deny, Atomic: true, Checks: make([]api.CheckAnswer, len(reqs))}
	for i, r := range reqs {
		all.Checks[i] = api.CheckAnswer{
			Allowed: all.Allowed, Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{}, Source: api.SourcePolicy,
			Note: fmt.Sprintf("the policy %s decided: %v", p, why),
		}
		if rules[i] != nil {
			all.Checks[i].Rule = rules[i].Name
		}
	}
	return all
}
