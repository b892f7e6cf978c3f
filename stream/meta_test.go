package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// The workers read 8 partitions. Nobody would read the events that a producer with 16 appends to the others. The user
// of this producer has only the rights of a producer: if Redis refuses a command, the package fails at its end.
func TestAProducerOfOtherPartitionsThanTheWorkers(t *testing.T) {
	url := streamtest.RedisAs(t, "producer")
	c, work := streamtest.Connect(t, url), streamtest.Connect(t, streamtest.Redis(t))
	workers := newKeys(t, 8)
	keys, err := stream.NewKeys(workers.Prefix, 16)
	testkit.Must(t, err)
	log, err := stream.NewLog(c, keys, time.Minute)
	testkit.Must(t, err)
	testkit.Must(t, log.Append(t.Context(), events(3)).Err) // no worker has used the prefix yet
	testkit.Must(t, stream.CheckMeta(t.Context(), work, workers))
	before := stored(t, work, keys)

	out := log.Append(t.Context(), events(20))
	if !errors.Is(out.Err, stream.ErrMismatch) || !strings.Contains(out.Err.Error(), "8") || out.RefusedEvents != 20 ||
		len(out.Refused) != 20 || out.Appended+out.UnknownEvents != 0 {
		t.Errorf("outcome %+v, want 20 refused because of a mismatch", out)
	}
	p := newProducer(t, log, stream.ProducerConfig{FlushTimeout: time.Hour})
	put(t, p, api.Event{Key: "user:1", Count: 1, ID: "1"}) // it is not sent again until the timeout
	if err := p.Close(t.Context()); !errors.Is(err, stream.ErrMismatch) {
		t.Errorf("Close: %v, want a mismatch", err)
	}
	if after := stored(t, work, keys); len(after) != len(before) {
		t.Errorf("the streams have %v, want %v", after, before)
	}
	log, err = stream.NewLog(c, workers, time.Minute)
	testkit.Must(t, err)
	testkit.Must(t, log.Append(t.Context(), events(20)).Err)
}

// Some operators let their producers write and read nothing.
func TestAProducerThatMayNotReadThePartitions(t *testing.T) {
	c, k := streamtest.AnyRedis(t), newKeys(t, 4)
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() != "hget" {
			return next(ctx, cmd)
		}
		err := streamtest.Refusal("NOPERM User producer has no permissions to run the 'hget' command")
		cmd.SetErr(err)
		return err
	}))
	log, err := stream.NewLog(c, k, time.Minute)
	testkit.Must(t, err)
	testkit.Must(t, log.Append(t.Context(), events(20)).Err)
	if n := len(stored(t, c, k)); n != 20 {
		t.Errorf("%d events are stored of 20", n)
	}
}
