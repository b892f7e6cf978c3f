package alerts

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
)

// releasedTTL is how long a released message stays in the snapshot: long enough for a subscriber that was away for a
// moment to see it.
const releasedTTL = time.Minute

// message returns a transition as it is published: JSON, with CloudEvents 1.0 attributes in its headers (binary mode)
// and an ID from its content, by which JetStream drops a copy. A throttle decision has its own time to live, so that
// the snapshot holds only keys that are throttled now. A transition that subscribers would ignore is an error.
func message(prefix string, t api.Transition) (*nats.Msg, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	t.ID = t.MessageID(prefix)
	body, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encoding transition %s: %w", t.ID, err)
	}
	kind := "alert"
	if t.IsThrottle() {
		kind = "throttle"
	}
	h := nats.Header{}
	// CloudEvents attribute names are lower case, so they are set without canonical form.
	h["ce-specversion"] = []string{"1.0"}
	h["ce-id"] = []string{t.ID}
	h["ce-source"] = []string{"/streamcounter/" + prefix}
	h["ce-type"] = []string{"io.streamcounter." + kind + "." + string(t.State)}
	h["ce-time"] = []string{t.At().Format(time.RFC3339Nano)}
	h["ce-datacontenttype"] = []string{"application/json"}
	h[jetstream.MsgIDHeader] = []string{t.ID}
	if t.IsThrottle() {
		h[jetstream.MsgTTLHeader] = []string{ttl(t).String()}
	}
	return &nats.Msg{Subject: t.Subject(prefix), Header: h, Data: body}, nil
}

// ttl returns the time from when the decision was written until it expires, both by Redis's clock. With the worker's
// own clock, a clock that is ahead would remove the decision for all subscribers too early. ttl is in whole seconds
// as JetStream requires, rounded up, at least one. A decision that waited in the outbox while NATS was away stays
// stored for longer than it is valid; its expires_ms shows this.
func ttl(t api.Transition) time.Duration {
	d := releasedTTL
	if t.State == api.StateThrottled {
		d = time.Duration(t.ExpiresMs-t.AtMs) * time.Millisecond
	}
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}
