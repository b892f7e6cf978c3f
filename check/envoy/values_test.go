package envoy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A value that cannot be counted as it is does not make the request an error, which could pass all limits.
func TestValuesOfAnyForm(t *testing.T) {
	w := newWorld(t, check.Config{Timeout: patience}, streamtest.AnyRedis(t), &windows.Rule{Name: "stuffing",
		Match: "edge/ip=*", Windows: []windows.Window{{Limit: 100, Per: time.Minute, Distinct: "user",
			ValueFrom: "login", Normalize: windows.Normalize{Trim: true, Lower: true}}}})
	client := w.dial(t, envoy.Config{})
	_, err := w.service.Check(t.Context(), api.CheckRequest{Key: "edge/ip=1",
		Values: map[string]string{"user": "Alice"}})
	testkit.Must(t, err)
	long := strings.Repeat("Ⱥ", 300) // longer in lower case
	for i, login := range []string{"alice", "", " ", long, long + "b", "a\n", "a\x00", "caf?", "caf!", "caf\uFFFD",
		"a\u200b"} {
		for range 2 {
			r := requestOf(t, "ip=1 login")
			r.Descriptors[0].Entries[1].Value = login
			resp, err := client.ShouldRateLimit(t.Context(), r, notUTF8)
			if used := w.used(t, "edge/ip=1"); err != nil || used != int64(i+1) {
				t.Fatalf("%.20q: %v, %v, used %d, want %d", login, resp, err, used, i+1)
			}
		}
	}
}
