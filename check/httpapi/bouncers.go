package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/crowdsec"
)

func (s *Server) getDecisions(w http.ResponseWriter, r *http.Request) error {
	filter, err := crowdsec.ParseFilter(r.URL.Query())
	if err != nil {
		return err
	}
	body, err := s.find(r, func(ctx context.Context) (any, error) {
		list, err := s.config.Bouncers.Active(ctx, filter)
		return list, storeError(r, err)
	})
	if err != nil {
		return err
	}
	_, err = s.sendDecisions(w, r, body)
	return err
}

// getDecisionStream answers with what changed since the bouncer's last answer. The answer to HEAD, with which
// bouncers test their key, does not count as one.
func (s *Server) getDecisionStream(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	filter, err := crowdsec.ParseFilter(q)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "application/json")
		return nil
	}
	var markReceived func()
	body, err := s.find(r, func(ctx context.Context) (any, error) {
		changes, done, err := s.config.Bouncers.Pull(ctx, bouncerOf(r), q.Get("startup") == "true", filter)
		markReceived = done
		return changes, storeError(r, err)
	})
	if err != nil {
		return err
	}
	// The context is not checked here: a bouncer that has its answer may have closed the connection.
	sent, err := s.sendDecisions(w, r, body)
	if sent && http.NewResponseController(w).Flush() == nil {
		markReceived()
	}
	return err
}

// bouncerOf identifies a bouncer by the name of its token, its address and its program, because several bouncers may
// share a token.
func bouncerOf(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return fmt.Sprintf("%s\n%s\n%.100s", access.Caller(r.Context()), host, r.UserAgent())
}

// storeError returns the error of a scan that failed: the caller went away, or Redis did not answer.
func storeError(r *http.Request, err error) error {
	if err == nil || r.Context().Err() != nil {
		return r.Context().Err()
	}
	return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
}

// sendDecisions writes the body without a line feed at the end, because bouncers compare the body with "null".
func (s *Server) sendDecisions(w http.ResponseWriter, r *http.Request, body []byte) (sent bool, err error) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	return s.send(w, r, body)
}
