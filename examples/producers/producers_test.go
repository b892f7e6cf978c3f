package producers_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// Keys whose partition is often computed wrongly: braces of all kinds, CRC-32 above 2^31, and characters beyond
// ASCII.
var appended = map[string]int64{
	"user:42": 3, "{tenant1}:a": 1, "{tenant1}:b": 1_000_000_000, "{}:a": 2, "a{}b": 2, "a{": 1, "a}b{c": 4,
	"}{x}": 5, "{{x}}": 6, "{a}{b}": 7,
	"ключ": 8, "x{é}y": 9, "/a/b?c=d": 10, "a": 11, "ip:2001:db8::/64": 12,
}

var scripts = map[string]string{"python3": "append.py", "php": "append.php"}

// TestProducers runs the example programs and decodes their events as a worker does. (The tests of consumers prove that
// workers count such events.)
func TestProducers(t *testing.T) {
	for program, script := range scripts {
		t.Run(program, func(t *testing.T) {
			bin := streamtest.Program(t, program)
			url := streamtest.Redis(t)
			c := streamtest.Connect(t, url)
			keys, err := stream.NewKeys(streamtest.Prefix(t), 7)
			testkit.Must(t, err)
			var lines strings.Builder
			want := map[string]int64{}
			for key, count := range appended {
				fmt.Fprintf(&lines, "%s %d\n", key, count)
				want[key] += count
			}
			lines.WriteString("user:42\r\n\n") // without a count, from another system
			want["user:42"]++
			run := func(args ...string) (string, error) {
				return pipe(t, lines.String(), bin, append([]string{script}, args...)...)
			}
			if out, err := run(c.Options().Addr, keys.Prefix, "7"); err != nil ||
				out != fmt.Sprintf("appended %d events\n", len(appended)+1) {
				t.Fatalf("%v: %s", err, out)
			}

			// Each in its partition, for as long as the retention.
			got := map[string]int64{}
			for _, p := range keys.All() {
				entries, err := c.XRange(t.Context(), keys.Events(p), "-", "+").Result()
				testkit.Must(t, err)
				for _, e := range entries {
					event, err := entry.Message{ID: e.ID, Values: e.Values}.Decode()
					testkit.Must(t, err)
					if keys.Partition(event.Key) != p {
						t.Errorf("%s is in partition %d, want %d", event.Key, p, keys.Partition(event.Key))
					}
					got[event.Key] += event.Count
				}
				if ttl := c.PTTL(t.Context(), keys.Events(p)).Val(); len(entries) > 0 &&
					(ttl <= 9*time.Minute || ttl > 10*time.Minute) {
					t.Errorf("partition %d is kept for %s, want 10 minutes", p, ttl)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("in the log: %v\nwant:       %v", got, want)
			}

			// The key is not a stream, or no server answers: an error, with an exit code.
			testkit.Must(t, c.Set(t.Context(), keys.Events(keys.Partition("a")), "none", 0).Err())
			if out, err := run(c.Options().Addr, keys.Prefix, "7"); err == nil || !strings.Contains(out, "WRONGTYPE") {
				t.Errorf("refused: %v, %s", err, out)
			}
			if out, err := run("127.0.0.1:1"); err == nil {
				t.Errorf("nobody there: %s", out)
			}
			other := httptest.NewServer(http.NotFoundHandler())
			defer other.Close()
			out, err := pipe(t, "a\n", bin, script, other.Listener.Addr().String())
			if err == nil || !strings.Contains(out, "does not answer as Redis does: ") {
				t.Errorf("another server: %v, %s", err, out)
			}
		})
	}
}

func pipe(t *testing.T, lines, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = strings.NewReader(lines)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Both programs log in as the producer of deploy/users.acl, and append nothing if a line has an invalid count.
func TestProducersLogInAndRefuseInvalidCounts(t *testing.T) {
	as, err := redis.ParseURL(streamtest.RedisAs(t, "producer"))
	testkit.Must(t, err)
	t.Setenv("REDIS_USER", as.Username)
	for program, script := range scripts {
		bin, prefix := streamtest.Program(t, program), streamtest.Prefix(t)
		run := func(password, lines string) string {
			t.Setenv("REDIS_PASSWORD", password)
			out, err := pipe(t, lines, bin, script, as.Addr, prefix, "1")
			return fmt.Sprintf("failed: %t: %s", err != nil, out)
		}
		for _, count := range []string{"x", "0", "-1", "+1", "1.5", "1_0", "1000000001", "1 1"} {
			said := run(as.Password, "a 1\nbad "+count+"\n")
			if !strings.HasPrefix(said, "failed: true") || !strings.Contains(said, "1 to 1000000000") {
				t.Errorf("%s with the count %s: %s", script, count, said)
			}
		}
		if said := run(as.Password, "a 1000000000\nb \n"); said != "failed: false: appended 2 events\n" {
			t.Errorf("%s: %s", script, said)
		}
		said := run("wrong", "b\n")
		if !strings.HasPrefix(said, "failed: true") || !strings.Contains(said, "WRONGPASS") {
			t.Errorf("%s with a wrong password: %s", script, said)
		}
		c := streamtest.Connect(t, streamtest.Redis(t))
		for _, e := range c.XRange(t.Context(), prefix+":{0}:events", "-", "+").Val() {
			if v := fmt.Sprint(e.Values); v != "map[count:1000000000 key:a]" && v != "map[count:1 key:b]" {
				t.Errorf("%s appended %s", script, v)
			}
		}
	}
}
