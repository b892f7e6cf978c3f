package httpapi

import (
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

func (s *Server) leaseRoutes() []Route {
	return []Route{{Method: "POST", Path: "/v1/leases", Scope: access.ScopeCheck, Serve: taking(s.postLease)}}
}

func (s *Server) postLease(w http.ResponseWriter, r *http.Request) error {
	var req api.LeaseRequest
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	got, err := s.checks.Lease(req)
	return respond(w, got, err)
}
