package client_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// An override that an operator sets over HTTP applies to the checks of a server and of package direct.
func TestOverrides(t *testing.T) {
	// user:1 is asked for until its block is known: that must not use up its limit.
	large := &windows.Rule{Name: "large", Match: "user:1", Windows: []windows.Window{{Limit: 1e9, Per: time.Minute}}}
	for _, way := range transports {
		t.Run(way.name, func(t *testing.T) {
			ctx := t.Context()
			w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience, large, tenAMinute)
			c, operator := way.open(t, w), overHTTP(t, w.serveHTTP(t))
			if own, ok := c.(*direct.Redis); ok {
				testkit.Run(t, own.FollowOverrides)
			}
			allowed := func(key string, want bool) {
				t.Helper()
				streamtest.Eventually(t, key, func() (bool, string) {
					a, err := c.Check(ctx, api.CheckRequest{Key: key})
					return err == nil && a.Allowed == want, "it is answered otherwise"
				})
			}
			beside := func(other, want string) { // a key over its limit
				streamtest.Eventually(t, other, func() (bool, string) {
					all, err := c.CheckAll(ctx, []api.CheckRequest{{Key: other}, {Key: "user:2"}})
					got := fmt.Sprint(all.Checks[0].Allowed, " ", all.RetryAfterMs)
					return err == nil && got == want, got
				})
			}
			testkit.Must(t, ask(ctx, c, "check", api.CheckRequest{Key: "user:2", Cost: 10}))
			_, err := operator.SetOverride(ctx, "user:1", api.Override{Exempt: true})
			testkit.Must(t, err)
			beside("user:1", "true 60000")
			set, err := operator.SetOverride(ctx, "user:1", api.Override{Block: true, Reason: "abuse"})
			if err != nil || set.Key != "user:1" || set.AtMs == 0 {
				t.Fatalf("%+v, %v", set, err)
			}
			allowed("user:1", false)
			beside("user:1", "false -1")
			_, err = operator.SetOverride(ctx, "nobody*", api.Override{Block: true})
			testkit.Must(t, err)
			allowed("nobody:1", false)
			page, err := operator.Overrides(ctx, 1, "")
			if err != nil || len(page.Overrides) != 1 || page.Overrides[0].Pattern != "nobody*" {
				t.Errorf("%+v, %v", page, err)
			}
			page, err = operator.Overrides(ctx, 2, page.Next)
			if err != nil || len(page.Overrides) != 1 || page.Overrides[0].Key != "user:1" || page.Next != "" {
				t.Errorf("%+v, %v", page, err)
			}
			if had, err := operator.ClearOverride(ctx, "user:1", "settled"); !had || err != nil {
				t.Errorf("%t, %v", had, err)
			}
			allowed("user:1", true)
			if _, err = operator.Override(ctx, "user:1"); !errors.Is(err, api.ErrNoOverride) {
				t.Error(err)
			}
			_, err = operator.SetOverride(ctx, "user:1", api.Override{Rule: "none"})
			if !errors.Is(err, api.ErrBadOverride) {
				t.Error(err)
			}
			h, err := operator.History(ctx, "user:1", 1, "")
			if err != nil || len(h.Entries) != 1 || h.Entries[0].Change.Reason != "settled" {
				t.Errorf("%+v, %v", h, err)
			}
			h, err = operator.History(ctx, "user:1", 1, h.Next)
			if err != nil || len(h.Entries) != 1 || h.Entries[0].Change.After == nil {
				t.Errorf("%+v, %v", h, err)
			}
		})
	}
}
