package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A change whose outcome the server does not know: the command says what may have happened and what to do.
func TestChangeWithAnUnknownOutcome(t *testing.T) {
	server := testkit.Answering(t, http.StatusServiceUnavailable, `{"type": "urn:streamcounter:outcome-unknown",
		"status": 503, "title": "It may or may not have been stored", "detail": "outcome unknown: it may be sent again"}`)
	at := " --http " + strings.TrimPrefix(server.URL, "http://")
	for _, command := range []string{"block user:1", "limit user:1 5/1m", "clear user:1", "reset user:1"} {
		expect(t, "keys "+command+at, 1, "streamcounter: It may or may not have been stored (outcome unknown: it may "+
			"be sent again)\n")
	}
}

// An error that is not ours is shown, shortened. A server that wants TLS says so in one.
func TestErrorsThatAreNotOurs(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains about plain HTTP
	secure.StartTLS()
	defer secure.Close()
	other := testkit.Answering(t, http.StatusBadGateway, "<html>\n<body>no upstream</body>"+strings.Repeat(" ", 9999))
	for _, command := range []string{"check user:1", "keys show user:1"} {
		for url, says := range map[string]string{
			"http://" + strings.TrimPrefix(secure.URL, "https://"): "the server answered 400 Bad Request: " +
				"\"Client sent an HTTP request to an HTTPS server.\"; give --http https://HOST:PORT, or --http-ca\n",
			other.URL: "the server answered 502 Bad Gateway: \"<html>\\n<body>no upstream</body>",
		} {
			text := expect(t, command+" --http "+url, failure, says)
			if len(text) > 400 {
				t.Errorf("it says %d bytes", len(text))
			}
		}
	}
}
