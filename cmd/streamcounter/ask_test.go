package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A change whose outcome the server does not know: the command says what may have happened and what to do.
func TestChangeWithAnUnknownOutcome(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"type": "urn:streamcounter:outcome-unknown", "status": 503,
			"title": "It may or may not have been stored", "detail": "outcome unknown: it may be sent again"}`))
	}))
	defer server.Close()
	at := " --http " + strings.TrimPrefix(server.URL, "http://")
	for _, command := range []string{"block user:1", "limit user:1 5/1m", "clear user:1", "reset user:1"} {
		expect(t, "keys "+command+at, 1, "streamcounter: It may or may not have been stored (outcome unknown: it may "+
			"be sent again)\n")
	}
}
