package httpapi

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/internal/inflight"
)

// ProblemTypes are those of errors.
func ProblemTypes() (list []string) {
	for _, p := range problems {
		list = append(list, problemOf(p.err).Type)
	}
	return list
}

// Routes lists the routes.
func (x *Router) Routes() []Route {
	list := slices.Clone(x.prefixes)
	for _, routes := range x.exact {
		list = append(list, routes...)
	}
	return list
}

var DecodeEvents = decodeEvents

const (
	ListingsAtOnce = listingsAtOnce
	ListingsQueued = listingsQueued
)

// Listings returns how many listings run or wait.
func (s *Server) Listings() int { return int(s.listings.Load()) }

// ShareMemory changes how much memory there is, in bytes.
func (s *Server) ShareMemory(bodies, events int64) {
	s.bodies, s.events = inflight.NewPool(bodies), inflight.NewPool(events)
}

// Held returns how much memory bodies hold now.
func (s *Server) Held() (bodies, events int64) { return s.bodies.Held(), s.events.Held() }

// Busy counts refusals.
func (m *Metrics) Busy(reason string) prometheus.Counter { return m.busy.WithLabelValues(reason) }
