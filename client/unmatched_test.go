package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A key that no rule matches has no limit, unless UnmatchedKeys denies it. A shadow rule matches it too.
func TestUnmatchedKeys(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, way way) {
		ctx, request := t.Context(), api.CheckRequest{Key: "nobody:1"}
		allows := newClient(t, c, client.Config{Timeout: patience})
		if a, err := allows.Check(ctx, request); err != nil || !a.Allowed {
			t.Errorf("by default: %+v, %v", a, err)
		}
		denies := newClient(t, c, client.Config{Timeout: patience, UnmatchedKeys: client.Deny})
		refused := func(a api.CheckAnswer) bool {
			return !a.Allowed && !a.Charged && a.RetryAfterMs < 0 && a.Note != "" && a.Key == "nobody:1"
		}
		if a, err := denies.Check(ctx, request); err != nil || !refused(a) {
			t.Errorf("Check: %+v, %v", a, err)
		}
		if a, err := denies.CheckEach(ctx, []api.CheckRequest{request, {Key: "api:1"}}); err != nil ||
			!refused(a[0].CheckAnswer) || !a[1].Allowed {
			t.Errorf("CheckEach: %+v, %v", a, err)
		}
		all, err := denies.CheckAll(ctx, []api.CheckRequest{request, {Key: "api:1"}})
		if err != nil || all.Allowed || all.RetryAfterMs != -1 || !refused(all.Checks[0]) || all.Checks[1].Allowed ||
			!all.Checks[1].Charged {
			t.Errorf("CheckAll: %+v, %v, want that it says what is charged", all, err)
		}
		if a, err := denies.Check(ctx, api.CheckRequest{Key: "api:2"}); err != nil || !a.Allowed {
			t.Errorf("a key with a rule: %+v, %v", a, err)
		}
		if a, err := denies.Check(ctx, api.CheckRequest{Key: "trial:1"}); way.whole && (err != nil || !a.Allowed) {
			t.Errorf("a key with a shadow rule: %+v, %v", a, err)
		}
		if err := denies.Wait(ctx, "nobody:1", 1); !errors.Is(err, client.ErrOverLimit) {
			t.Errorf("Wait: %v", err)
		}
		if _, ok := c.(client.Reserver); !ok {
			return
		}
		if _, err := denies.Acquire(ctx, "nobody:1", 1); !errors.Is(err, client.ErrOverLimit) {
			t.Errorf("Acquire: %v", err)
		}
	}, rule("api", nil, windows.Window{Limit: 5, Per: time.Minute}),
		rule("trial", func(r *windows.Rule) { r.Shadow = true }, windows.Window{Limit: 5, Per: time.Minute}))
}

func TestDial(t *testing.T) {
	w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience,
		rule("api", nil, windows.Window{Limit: 1, Per: time.Minute}))
	c, err := client.Dial("http://"+w.serveHTTP(t), client.Config{Timeout: patience,
		HTTP: client.HTTPConfig{Token: client.StaticToken("secret")}})
	testkit.Must(t, err)
	defer c.Close()
	for _, want := range []bool{true, false} {
		if a, err := c.Check(t.Context(), api.CheckRequest{Key: "api:1"}); err != nil || a.Allowed != want {
			t.Errorf("%+v, %v, want allowed: %t", a, err, want)
		}
	}
	for url, config := range map[string]client.Config{"127.0.0.1:8080": {}, "http://127.0.0.1:8080": {MaxWait: -1}} {
		if _, err := client.Dial(url, config); err == nil {
			t.Errorf("%s, MaxWait %s: no error", url, config.MaxWait)
		}
	}
}
