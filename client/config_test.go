package client_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
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
