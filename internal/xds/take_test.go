package xds

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The reason names what came and what was expected.
func TestAForeignResourceIsRefused(t *testing.T) {
	s, err := New(Config{Server: "127.0.0.1:1"})
	testkit.Must(t, err)
	const want = `resources[0] is a "foo.Bar", expected a "ratelimit.config.ratelimit.v3.RateLimitConfig"`
	if err := s.take([]*anypb.Any{{TypeUrl: "type.googleapis.com/foo.Bar"}}); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}
