package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// As TestTransitionsSurviveAnAbsenceOfNATS, with a cluster of three and as many
// replicas: the stream's leader is killed, then two of three, for an absence, then all are restarted.
func TestTransitionsSurviveANATSCluster(t *testing.T) {
	outage := absence(t)
	cluster := streamtest.OwnNATSCluster(t)
	x := newCrossings(t, cluster.URL(), 3)
	x.load(time.Second)
	heard := x.listen()
	leader := cluster.LeaderOf(strings.ToUpper(x.w.prefix) + "_ALERTS")
	cluster.Kill(leader)
	x.load(time.Second)
	cluster.Start(leader)
	x.load(time.Second)

	cluster.Kill(0)
	cluster.Kill(1)
	x.load(outage)
	cluster.Start(0)
	cluster.Start(1)
	x.load(time.Second)

	// Not by SIGKILL: with all of them killed at once, one run of five lost alerts
	// (docs/reliability.md).
	for i := range 3 {
		cluster.Stop(i)
	}
	x.load(time.Second)
	for i := range 3 {
		cluster.Start(i)
	}
	cluster.AwaitLeader()
	x.load(time.Second)
	x.verify()
	x.heardAll(heard)
}

// listen is a durable consumer of the alerts, of three replicas, that acknowledges.
// It gives what it hears: sequence in the stream → transition.
func (x *crossings) listen() *sync.Map {
	x.t.Helper()
	js := streamtest.JetStream(x.t, x.w.natsURL)
	var c jetstream.Consumer
	streamtest.Eventually(x.t, 30*time.Second, "there is a durable consumer", func() (bool, string) {
		var err error
		c, err = js.CreateOrUpdateConsumer(x.t.Context(), strings.ToUpper(x.w.prefix)+"_ALERTS",
			jetstream.ConsumerConfig{Durable: "listener", AckPolicy: jetstream.AckExplicitPolicy,
				AckWait: 2 * time.Second})
		return err == nil, fmt.Sprint(err)
	})
	heard := &sync.Map{}
	consuming, err := c.Consume(func(m jetstream.Msg) {
		var tr api.Transition
		meta, err := m.Metadata()
		if err == nil {
			err = json.Unmarshal(m.Data(), &tr)
		}
		if err != nil {
			x.t.Error(err)
			return
		}
		heard.Store(meta.Sequence.Stream, tr)
		_ = m.Ack() // one that is lost brings the message again
	}, jetstream.PullHeartbeat(500*time.Millisecond), jetstream.PullExpiry(2*time.Second))
	testkit.Must(x.t, err)
	x.t.Cleanup(func() {
		consuming.Stop()
		<-consuming.Closed()
	})
	return heard
}

// heardAll waits until each key was heard to rise and fall, in this order, once.
func (x *crossings) heardAll(heard *sync.Map) {
	x.t.Helper()
	streamtest.Eventually(x.t, 60*time.Second, "the durable consumer has heard every transition",
		func() (bool, string) {
			bySeq := map[uint64]api.Transition{}
			heard.Range(func(seq, tr any) bool {
				bySeq[seq.(uint64)] = tr.(api.Transition)
				return true
			})
			got := map[string]string{}
			for _, seq := range slices.Sorted(maps.Keys(bySeq)) {
				tr := bySeq[seq]
				got[tr.Key] += fmt.Sprintf("%s %d, ", tr.State, tr.Level)
			}
			right := 0
			for k := range x.keys {
				if got[fmt.Sprintf("user:%d", k)] == "raised 100, cleared 100, " {
					right++
				}
			}
			return right == x.keys && len(bySeq) == 2*x.keys, fmt.Sprintf("%d of %d keys in %d transitions", right,
				x.keys, len(bySeq))
		})
}
