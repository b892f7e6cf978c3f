package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
)

// LastDecision returns the throttle decision for a rule and key that is in the stream of decisions. It returns nil if
// the stream has no decision for them, or if the message is not a valid decision.
func (p *Publisher) LastDecision(ctx context.Context, rule, key string) (*api.Transition, error) {
	stream, err := p.throttleStream(ctx)
	if err != nil {
		return nil, err
	}
	subject := api.ThrottleSubject(p.config.Prefix, rule, key)
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", subject, err)
	}
	var t api.Transition
	if bad := errors.Join(json.Unmarshal(m.Data, &t), t.Validate()); bad == nil {
		return &t, nil
	}
	return nil, nil
}

// throttleStream returns the stream of decisions. It asks JetStream for the stream only once.
func (p *Publisher) throttleStream(ctx context.Context) (jetstream.Stream, error) {
	if known := p.throttle.Load(); known != nil {
		return *known, nil
	}
	name, _ := StreamNames(p.config.Prefix)
	stream, err := p.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	p.throttle.Store(&stream)
	return stream, nil
}
