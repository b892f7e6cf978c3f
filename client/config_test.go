package client_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []client.Config{
		{Timeout: -1}, {Instances: -1}, {KnownKeys: -1}, {LocalKeys: -1}, {Policy: 4}, {UnknownKeys: client.Local},
		{RulePolicies: map[string]client.Policy{"x": 9}}, {Leases: -1}, {Denials: -1}, {MaxWait: -1},
		{Leases: 5}, // this server has no leases
	} {
		if _, err := client.New(&storyServer{}, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, err := client.New(nil, client.Config{}); err == nil {
		t.Error("no Checker was taken")
	}
}

// A request that no server accepts is not sent.
func TestReservationsThatCannotBe(t *testing.T) {
	n := newClient(t, &storyServer{}, client.Config{})
	one := api.CheckRequest{Key: "k"}
	for _, bad := range []api.ReservationRequest{
		{CheckRequest: one, TTLMs: -1}, {CheckRequest: api.CheckRequest{Key: "k", Mode: api.ModeLook}},
		{CheckRequest: api.CheckRequest{Checks: []api.CheckRequest{{Key: "k", Mode: api.ModeLook}}}},
		{CheckRequest: api.CheckRequest{Checks: []api.CheckRequest{}}},
		{CheckRequest: api.CheckRequest{Key: "k", Checks: []api.CheckRequest{one}}},
	} {
		if _, err := n.Reserve(t.Context(), bad); outcome(err) != api.NameOf(api.ErrBadRequest) {
			t.Errorf("reserve %+v: %v", bad, err)
		}
	}
}

// Local counts by the clock of the configuration, and says when its windows have room.
func TestTheClockOfLocal(t *testing.T) {
	now := int64(1_700_000_000_000)
	two := client.Rule{Name: "mine", Limits: []client.Limit{{Units: 2, Per: time.Minute}}}
	n := newClient(t, &storyServer{answers: []string{"away"}}, client.Config{Policy: client.Local, Retries: -1,
		RuleOf: func(string) (client.Rule, bool) { return two, true }, Now: func() int64 { return now }})
	for _, x := range []struct{ passes, used, wait, next, empty int64 }{{0, 1, 0, 60_000, 60_000},
		{15_000, 2, 0, 45_000, 60_000}, {15_000, 2, 30_000, 30_000, 45_000}, {30_000, 2, 0, 15_000, 60_000}} {
		now += x.passes
		a, err := n.Check(t.Context(), api.CheckRequest{Key: "k"})
		testkit.Must(t, err)
		want := api.WindowState{Limit: 2, WindowMs: 60_000, Used: x.used, Remaining: 2 - x.used, EmptyMs: x.empty,
			NextFreeMs: x.next}
		if a.Rule != "mine" || a.RetryAfterMs != x.wait || len(a.Windows) != 1 || a.Windows[0] != want {
			t.Errorf("%+v, want a wait of %d ms and %+v", a, x.wait, want)
		}
	}
}
