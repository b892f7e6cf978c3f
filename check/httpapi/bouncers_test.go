package httpapi_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// If a proxy asks for a check, the application's own X-Api-Key is not used as a token.
func TestAPIKeyIsOfBouncersAlone(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	router := httpapi.NewRouter(newTokens(t), w.server.Routes(nil)...)
	for _, route := range router.Routes() {
		target := route.Path
		if strings.HasSuffix(target, "/") {
			target += "x"
		}
		rec, r := httptest.NewRecorder(), httptest.NewRequest(route.Method, target, nil)
		r.Header.Set("X-Api-Key", operator)
		router.ServeHTTP(rec, r)
		if ours := strings.HasPrefix(route.Path, "/v1/decisions"); !route.Open && ours != (rec.Code == 200) ||
			!ours && !route.Open && rec.Code != 401 {
			t.Errorf("%s %s with X-Api-Key: %d %s", route.Method, target, rec.Code, rec.Body)
		}
	}
	// It does not matter if there is a valid token too. (A bouncer compares the whole body with null.)
	rec, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/decisions", nil)
	r.Header.Set("X-Api-Key", "of-the-application")
	r.Header.Set("Authorization", "Bearer "+reader)
	if router.ServeHTTP(rec, r); rec.Code != 200 || rec.Body.String() != "null" {
		t.Errorf("with a good token and another X-Api-Key: %d %q", rec.Code, rec.Body)
	}
}
