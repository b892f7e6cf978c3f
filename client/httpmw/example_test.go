package httpmw_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/httpmw"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// limited puts a handler behind the server at url: its body is the ten lines of README.md and docs/client.md.
func limited(url string, handler http.Handler) (http.Handler, error) {
	limiter, err := client.Dial(url, client.Config{}) // as in http://127.0.0.1:8080
	if err != nil {
		return nil, err
	}
	key := httpmw.First(httpmw.Header("X-Api-Key", "user:"), httpmw.ClientAddress("ip:"))
	limit, err := httpmw.New(httpmw.Config{Checker: limiter, Key: key})
	if err != nil {
		return nil, err
	}
	return limit(handler), nil
}

// Each request costs one unit of the key that its header names, or else of its address.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests) // this test server denies every check
		fmt.Fprint(w, `{"type":"urn:streamcounter:over-limit","key":"user:42","source":"redis","retry_after_ms":1500}`)
	}))
	defer server.Close()
	handler, err := limited(server.URL, http.NotFoundHandler())
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", "42")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Header().Get("Content-Type"))
	// Output: 429 2 application/problem+json
}

// The pages have the lines of the example; -update writes them.
func TestTheTenLines(t *testing.T) {
	text, err := os.ReadFile("example_test.go")
	testkit.Must(t, err)
	_, body, _ := strings.Cut(string(text), "func limited(url string, handler http.Handler) (http.Handler, error) {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	body = strings.TrimPrefix(strings.ReplaceAll("\n"+body, "\n\t", "\n"), "\n") + "\n"
	if n := strings.Count(body, "\n"); n > 10 {
		t.Errorf("they are %d", n)
	}
	for _, page := range []string{"../../README.md", "../../docs/client.md"} {
		testkit.Section(t, page, "ten lines", "```go\n"+body+"```\n")
	}
}
