package subscription

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// numbered is a consumer whose messages have the given numbers.
type numbered struct {
	jetstream.Consumer
	numbers []uint64
}

func (c numbered) Fetch(int, ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	b := batchOf{make(chan jetstream.Msg, len(c.numbers))}
	for _, n := range c.numbers {
		b.messages <- numberedMsg{n: n}
	}
	close(b.messages)
	return b, nil
}

type batchOf struct{ messages chan jetstream.Msg }

func (b batchOf) Messages() <-chan jetstream.Msg { return b.messages }
func (batchOf) Error() error                     { return nil }

type numberedMsg struct {
	jetstream.Msg
	n uint64
}

func (m numberedMsg) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Consumer: m.n, Stream: m.n}}, nil
}

// If a message is missing between two others, the session ends.
func TestAGapEndsTheSession(t *testing.T) {
	taken := 0
	s := &subscription{take: func(d Delivery) { taken += len(d.Messages) }}
	if n, err := s.fetch(t.Context(), numbered{numbers: []uint64{5, 6, 7}}, 5); n != 3 || err != nil || taken != 3 {
		t.Errorf("%d of 3 without a gap, %d taken, %v", n, taken, err)
	}
	_, err := s.fetch(t.Context(), numbered{numbers: []uint64{8, 10}}, 8)
	if err == nil || !strings.Contains(err.Error(), "message 10 came where 9 was expected") {
		t.Errorf("a gap: %v", err)
	}
}

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
