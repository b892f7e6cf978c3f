package alerts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
)

// Subjects returns the subjects that have a message in the stream of decisions.
func (p *Publisher) Subjects(ctx context.Context) ([]string, error) {
	stream, err := p.throttleStream(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, fmt.Errorf("listing the subjects of the decisions: %w", err)
	}
	return slices.Collect(maps.Keys(info.State.Subjects)), nil
}

// LastDecision returns the throttle decision that is in the stream of decisions on a subject. It returns nil if the
// stream has no message there, or if subscribers ignore it (api.ReadTransition).
func (p *Publisher) LastDecision(ctx context.Context, subject string) (*api.Transition, error) {
	stream, err := p.throttleStream(ctx)
	if err != nil {
		return nil, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", subject, err)
	}
	if t, err := api.ReadTransition(subject, m.Data); err == nil {
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
