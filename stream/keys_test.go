package stream_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// The numbers are those of zlib's crc32, in any language.
func TestPartition(t *testing.T) {
	k := newKeys(t, 16)
	for key, want := range map[string]int{
		"user:42": 6, "a": 3, "user": 9, "é": 14,
		"{a}:x": 3, "b{a}c": 3, "x{a}": 3, "{user}:1": 9, "{user}:2": 9, // the tag
		"{}": 3, "{}a": 6, "x{}{a}": 6, "{a": 12, "a}": 8, "}a{": 3, // no tag: the whole key
	} {
		if got := k.Partition(key); got != want {
			t.Errorf("%q is in partition %d, want %d", key, got, want)
		}
	}
	for partitions, want := range map[int]int{1: 0, 2: 0, 3: 1, 16: 6, 4096: 3462} {
		if got := newKeys(t, partitions).Partition("user:42"); got != want {
			t.Errorf("user:42 of %d partitions is in %d, want %d", partitions, got, want)
		}
	}
}

func TestNewKeys(t *testing.T) {
	says := func(prefix string, partitions int, want string) {
		t.Helper()
		_, err := stream.NewKeys(prefix, partitions)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("NewKeys(%q, %d): error %v, want it to say %q", prefix, partitions, err, want)
		}
	}
	for _, good := range []string{"sc", "0", "a_b-c", strings.Repeat("a", 32)} {
		says(good, 16, "")
		says(good, 4096, "")
	}
	for _, bad := range []string{"", "SC", "-a", "_a", "a.b", "a:b", "a{1}", "a*", "a\n", strings.Repeat("a", 33)} {
		says(bad, 16, fmt.Sprintf("prefix %q", bad))
	}
	says("sc", 0, "partitions 0")
	says("sc", 4097, "partitions 4097: expected 1 to 4096")
}

// The names are a contract with producers in other languages.
func TestKeyNames(t *testing.T) {
	k, err := stream.NewKeys("sc", 16)
	testkit.Must(t, err)
	for got, want := range map[string]string{
		k.Events(3):                   "sc:{3}:events",
		k.Counter(3, "log", "user:1"): "sc:{3}:log:user:1",
		k.Levels(15):                  "sc:{15}:levels",
		k.Due(0):                      "sc:{0}:due",
		k.Outbox(0):                   "sc:{0}:outbox",
		k.Dead(0):                     "sc:{0}:dead",
		k.Relay(0):                    "sc:{0}:relay",
		k.Meta():                      "sc:meta",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestCheckMeta(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 16)
		testkit.Must(t, stream.CheckMeta(ctx, c, k))
		testkit.Must(t, stream.CheckMeta(ctx, c, k)) // a second process

		other, err := stream.NewKeys(k.Prefix, 8)
		testkit.Must(t, err)
		err = stream.CheckMeta(ctx, c, other)
		if !errors.Is(err, stream.ErrMismatch) || !strings.Contains(err.Error(), "16") ||
			!strings.Contains(err.Error(), "8") {
			t.Errorf("8 partitions where there are 16: error %v, want a mismatch that says both", err)
		}
		testkit.Must(t, stream.CheckMeta(ctx, c, k)) // the refused one changed nothing

		for _, version := range []string{"2", "x"} {
			testkit.Must(t, c.HSet(ctx, k.Meta(), "version", version).Err())
			err = stream.CheckMeta(ctx, c, k)
			if !errors.Is(err, stream.ErrMismatch) || !strings.Contains(err.Error(), "version="+version) ||
				!strings.Contains(err.Error(), "with 1") {
				t.Errorf("version %s: error %v, want a mismatch that says both", version, err)
			}
		}

		free := newKeys(t, 8)
		testkit.Must(t, stream.CheckMeta(ctx, c, free)) // another prefix is independent

		testkit.Must(t, c.Set(ctx, free.Meta(), "mine", 0).Err())
		if err := stream.CheckMeta(ctx, c, free); err == nil || errors.Is(err, stream.ErrMismatch) ||
			!strings.Contains(err.Error(), free.Meta()) {
			t.Errorf("a foreign key: error %v, want one that names %s and is no mismatch", err, free.Meta())
		}
	})
}

// If processes with different numbers start at the same time, one wins, and only
// processes with its number continue.
func TestCheckMetaTogether(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		prefix := newKeys(t, 1).Prefix
		errs := make([]error, 8)
		var all sync.WaitGroup
		for i := range errs {
			k, err := stream.NewKeys(prefix, 1+i%4)
			testkit.Must(t, err)
			all.Go(func() { errs[i] = stream.CheckMeta(t.Context(), c, k) })
		}
		all.Wait()
		numbers := map[int]bool{}
		for i, err := range errs {
			switch {
			case err == nil:
				numbers[1+i%4] = true
			case !errors.Is(err, stream.ErrMismatch):
				t.Errorf("with %d partitions: error %v, want a mismatch", 1+i%4, err)
			}
		}
		if len(numbers) != 1 {
			t.Errorf("processes go on with these numbers of partitions: %v, want one", numbers)
		}
	})
}

// tagOf follows keyHashSlot of Redis's cluster.c, line by line.
func tagOf(key string) string {
	s := 0
	for s < len(key) && key[s] != '{' {
		s++
	}
	if s == len(key) {
		return key
	}
	e := s + 1
	for e < len(key) && key[e] != '}' {
		e++
	}
	if e == len(key) || e == s+1 {
		return key
	}
	return key[s+1 : e]
}

// crc16 is CRC-16/XMODEM, which Redis Cluster uses.
func crc16(text string) (crc uint16) {
	for i := range len(text) {
		crc ^= uint16(text[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// FuzzPartition: the hash tag is the same as for a real Redis (CLUSTER KEYSLOT), and
// the partition of a key depends only on its tag.
func FuzzPartition(f *testing.F) {
	for _, key := range []string{"user:42", "{a}:x", "x{a}", "{}{a}", "{}", "{a", "a}{", "}{a}", "{{a}}", "{a{b}c}",
		"{\x00}", "{é}x", "", "{\xff}", "{ }", "a{b}{c}", "b{a}c", "{a}}", "{a{b}", "{}a", "x{}{a}", "a}", "}a{",
		"a{}"} {
		f.Add(key)
	}
	c := streamtest.Connect(f, streamtest.OwnRedis(f, "--cluster-enabled", "yes").Addr())
	k := newKeys(f, stream.MaxPartitions)
	f.Fuzz(func(t *testing.T, key string) {
		tag := tagOf(key)
		slot, err := c.ClusterKeySlot(context.Background(), key).Result()
		testkit.Must(t, err)
		if want := int64(crc16(tag) % 16384); slot != want {
			t.Fatalf("%q: Redis says slot %d, its tag %q has %d", key, slot, tag, want)
		}
		if got, want := k.Partition(key), int(crc32.ChecksumIEEE([]byte(tag))%stream.MaxPartitions); got != want {
			t.Fatalf("%q, with the tag %q, is in partition %d, want %d", key, tag, got, want)
		}
	})
}

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
