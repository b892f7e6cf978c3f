package httpapi

import (
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

func (s *Server) leaseRoutes() []Route {
	return []Route{{Method: "POST", Path: "/v1/leases", Scope: access.ScopeCheck, Serve: http.HandlerFunc(s.postLease)}}
}

func (s *Server) postLease(w http.ResponseWriter, r *http.Request) {
	var req api.LeaseRequest
	err := s.readJSON(w, r, &req)
	var got api.LeaseAnswer
	if err == nil {
		got, err = s.checks.Lease(req)
	}
	respond(w, r, got, err)
}
