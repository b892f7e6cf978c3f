package backend

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A Redis that answers and refuses is not reported as one that does not answer.
func TestARedisThatRefuses(t *testing.T) {
	server := streamtest.EmbeddedRedis(t)
	for _, refusal := range []string{"MISCONF Errors writing to the AOF file: No space left on device",
		"WRONGPASS invalid username-password pair", "LOADING Redis is loading the dataset in memory"} {
		server.SetError(refusal)
		_, err := ConnectRedis(t.Context(), settings.Redis{URL: "redis://" + server.Addr()}, 0)
		if want := "the Redis at redis://" + server.Addr() + " answers, but refuses: " + refusal; err == nil ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A Cluster that begins with one master, named by its only address, is used as a Cluster.
func TestOneAddressOfACluster(t *testing.T) {
	ctx := t.Context()
	node := streamtest.OwnClusterOfOne(t)
	alone := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	for url, isCluster := range map[string]bool{node.URL(): true, alone: false} {
		short, blocking, err := ConnectRedisToRead(ctx, settings.Redis{URL: url}, 4)
		testkit.Must(t, err)
		for _, c := range []redis.UniversalClient{short, blocking} {
			if _, ok := c.(*redis.ClusterClient); ok != isCluster {
				t.Errorf("%s: %T", url, c)
			}
			testkit.Must(t, c.Set(ctx, streamtest.Prefix(t), 1, time.Minute).Err())
			testkit.Must(t, c.Close())
		}
	}
}

// FuzzTargets: a target is read or refused, and no message contains its password.
func FuzzTargets(f *testing.F) {
	for _, s := range [][4]string{
		{"redis://", "user", "hunter2", "10.0.0.1:6379/0"}, {"rediss://", "", "pa/ss", "host"},
		{"redis://", "u", "p@ss@", "host:1"}, {"redis+sentinel://", "u", "p#w?x", "a:1,b:2/main"},
		{"redis+sentinel://", "", "", "a:1"},
		{"redis://", "u", "100%", "h:x"}, {"nats://", "token", "", "h:4222"}, {"", "u", "pw", "h:1"},
		{"redis://", "u", "p:q", "h:1,redis://h:2"}, {"redis://", "u", "a b", "[::1]:6379"},
		{"redis://", "u", "://", "h:99999"}, {"redis://h:1,redis://", "u", "second", "h:2/3?db=x"},
		{"\x01redis://", "u", "ctl", "h"}, {"redis+sentinel://", "u", "%zz", "a/b/c"},
		{"unix://", "u", "sock", "/tmp/x"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, scheme, user, password, rest string) {
		// Long enough not to be a part of other text in the message.
		secret := "s3cr3t" + password + "s3cr3t"
		if strings.Contains(rest, "@") {
			return // everything before it would be a password
		}
		target := scheme + user + ":" + secret + "@" + rest
		says := redact.URL(target)
		opts, err := RedisOptions(target, settings.ClientFiles{})
		if err != nil {
			says += err.Error()
			wantNoMore(t, target, err)
		} else if len(opts.Addrs) == 0 || opts.MaxRetries != -1 {
			t.Fatalf("%q is read as %+v", target, opts)
		} else {
			says += fmt.Sprint(opts.Addrs)
		}
		if strings.Contains(says, "s3cr3t") {
			t.Fatalf("%q: %s", target, says)
		}
	})
}

func wantNoMore(t *testing.T, target string, err error) {
	t.Helper()
	if len(err.Error()) > len(target)+200 {
		t.Fatalf("an error of %d bytes for a target of %d", len(err.Error()), len(target))
	}
}

// Replies to a user with a password go to an inbox of that user; a token is never part of a subject.
func TestOwnInbox(t *testing.T) {
	for target, want := range map[string]string{
		"nats://worker:pw@h:4222": "_INBOX.worker", "nats://worker:pw@a,nats://worker:pw@b": "_INBOX.worker",
		"nats://s3cret-token@h:4222": "", "nats://s3cret-token:@h:4222": "", "nats://h:4222": "",
		"nats://a.b:pw@h": "", "%zz": "",
	} {
		var o nats.Options
		if err := ownInbox(target)(&o); err != nil || o.InboxPrefix != want {
			t.Errorf("%s: inbox %q (%v), want %q", target, o.InboxPrefix, err, want)
		}
	}
}
