package httpmw_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/httpmw"
)

// full stands in for a client.Client: it denies everybody.
type full struct{}

func (full) Check(_ context.Context, r api.CheckRequest) (api.CheckAnswer, error) {
	return api.CheckAnswer{Rule: "api", Key: r.Key, Cost: r.Cost, RetryAfterMs: 1500, Source: api.SourceRedis}, nil
}

// Each request costs one unit of the key that its header names.
func Example() {
	limit, err := httpmw.New(httpmw.Config{Checker: full{}, Key: httpmw.Header("X-Api-Key", "user:")})
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r) // no header, so no key: it passes
	fmt.Println(w.Code)
	r.Header.Set("X-Api-Key", "42")
	w = httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output:
	// 200
	// 429 application/problem+json
}
