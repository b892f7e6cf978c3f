package subscription

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A subscription to new messages waits for its stream. It gets the messages that came before it found the stream.
func TestTheStreamIsMadeLater(t *testing.T) {
	url := streamtest.OwnNATS(t).URL()
	js := streamtest.JetStream(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := Run(ctx, Config{NC: streamtest.ConnectNATS(t, url), Stream: "S", From: jetstream.DeliverNewPolicy,
		Failed: func(err error) error {
			if !errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
			_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
			testkit.Must(t, err)
			_, err = js.Publish(ctx, "s", nil)
			testkit.Must(t, err)
			return nil
		}}, func(d Delivery) {
		if len(d.Messages) > 0 {
			cancel()
		}
	})
	if err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("the first message does not come: %v", err)
	}
}
