package client

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// decode reads an admission or a denial, or returns the error that the answer contains. An answer that our server did
// not write says nothing about what happened to the check.
func (r *reply) decode(into any) error {
	var p api.Problem
	if r.status != http.StatusOK && r.status != http.StatusCreated {
		if err := json.Unmarshal(r.body, &p); err != nil || p.Type == "" {
			return r.foreign()
		}
		if p.Type != api.ProblemPrefix+"over-limit" {
			if api.ErrorNamed(p.Type) == nil {
				return r.foreign()
			}
			if p.RequestID != "" {
				p.Detail += " (request " + p.RequestID + ")"
			}
			return transport.Named(p.Type, p.Detail)
		}
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return transport.Lost(fmt.Errorf("status %d with a body that cannot be read: %w", r.status, err))
	}
	return nil
}

// validateAnswers refuses answers that do not fit checks that are decided together: then nobody decided. problem is the
// type of the problem in the answer. Denials have one; admissions and charges do not.
func validateAnswers(allowed bool, problem string, answers []api.CheckAnswer, reqs []api.CheckRequest) error {
	if len(answers) != len(reqs) {
		return transport.Lost(fmt.Errorf("%d answers to %d checks", len(answers), len(reqs)))
	}
	if denied := problem != ""; allowed == denied && (denied || reqs[0].Mode != api.ModeCharge) {
		return transport.Lost(fmt.Errorf("an answer with allowed: %t and type: %q", allowed, problem))
	}
	for i, a := range answers {
		if err := transport.ValidateAnswer(a, reqs[i].Key); err != nil {
			return err
		}
	}
	return nil
}

// foreign returns the error for an answer of a proxy, or of a server that is not streamcounter.
func (r *reply) foreign() error {
	err := fmt.Errorf("status %d, %s: %s", r.status, r.header.Get("Content-Type"), api.Shorten(string(r.body)))
	switch {
	case r.status == http.StatusUnauthorized:
		return fmt.Errorf("%w: %w", api.ErrUnauthenticated, err)
	case r.status == http.StatusForbidden:
		return fmt.Errorf("%w: %w", api.ErrForbidden, err)
	case r.status >= 500, r.status == http.StatusTooManyRequests:
		return transport.Lost(err) // a gateway may have passed the check on before it gave up
	}
	return fmt.Errorf("%w: %w: is this a streamcounter server?", api.ErrNoAnswer, err)
}
