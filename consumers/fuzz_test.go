package consumers

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
)

// An outbox entry that no code of ours wrote is not published: NATS would refuse some of them forever, and others would
// be published on subjects where nobody expects them.
func TestEntriesThatAreNotTransitions(t *testing.T) {
	decode := func(field, value string) error {
		values := map[string]any{"rule": "api", "key": "user:1", "state": "raised", "level": "50", "limit": "10",
			"window": "1000", "used": "5", "version": "1", "at": "1", "since": "1", "until": "2", "expires": "3"}
		values[field] = value
		_, err := decodeTransition(redis.XMessage{ID: "1-1", Values: values})
		return err
	}
	if err := decode("flags", "r"); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]string{{"rule", "*.>"}, {"key", strings.Repeat("k", 5000)}, {"level", "1e3"},
		{"version", ""}, {"since", "nan"}, {"values", "x"}} {
		if err := decode(x[0], x[1]); !errors.Is(err, api.ErrBadTransition) || len(err.Error()) > 300 {
			t.Errorf("%s %.20q: %v", x[0], x[1], err)
		}
	}
}

// FuzzOutboxEntry: any entry of an outbox becomes a dead letter, or it is a transition with exactly these values and
// a subject of its rule.
func FuzzOutboxEntry(f *testing.F) {
	f.Add("api", "user:42", "throttled", "100", "10", "60000", "12", "1795274075390", "1795274075390",
		"1795274075390", "1795274135307", "1795274141307", "s")
	f.Add("api", "a.b *>", "raised", "80", "10", "60000", "8", "1795274075390", "1795274075390", "1795274075390",
		"1795274135307", "1795274141307", "f")
	f.Add("*", "user:42", "raised", "80", "10", "60000", "8", "1", "1", "1", "1", "1", "r")
	f.Add("a.b", "\x00", "cleared", "1e3", "inf", "nan", "-1", "0", "0x10", "9223372036854775807",
		"9223372036854775808", "", "sr")
	f.Add("api", strings.Repeat("k", 513), "released", "99", "0", "0", "0", "0", "0", "0", "0", "253402300800000", "x")
	f.Add(strings.Repeat("a", 65), "user:42", ">", "+100", "010", " 1", "1_0", "+1", "1", "1", "1", "1", "")
	f.Fuzz(func(t *testing.T, rule, key, state, level, limit, window, used, version, at, since, until, expires,
		flags string) {
		values := map[string]any{"rule": rule, "key": key, "state": state, "level": level, "limit": limit,
			"window": window, "used": used,
			"version": version, "at": at, "since": since, "until": until, "expires": expires, "flags": flags}
		got, err := decodeTransition(redis.XMessage{ID: "1-1", Values: values})
		if err != nil {
			if len(err.Error()) > 400 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		for text, n := range map[string]int64{level: int64(got.Level), limit: got.Limit, window: got.WindowMs,
			used: got.Used, version: got.Version, at: got.AtMs, since: got.SinceMs, until: got.UntilMs,
			expires: got.ExpiresMs} {
			if want, err := strconv.ParseInt(text, 10, 64); err != nil || want != n || n < 0 {
				t.Fatalf("%q was read as %d", text, n)
			}
		}
		if got.InFlight != strings.Contains(flags, "f") {
			t.Fatalf("in flight: %t, of the flags %q", got.InFlight, flags)
		}
		if got.Rule != rule || got.Key != key || string(got.State) != state {
			t.Fatalf("%+v of %v", got, values)
		}
		want := "sc.throttle." + rule + "." + api.KeyToken(key)
		if state == "raised" || state == "cleared" {
			want = "sc.alert." + rule + "." + strconv.Itoa(got.Level) + "." + api.KeyToken(key)
		}
		if subject := got.Subject("sc"); subject != want || strings.Count(subject, ".") != strings.Count(want, ".") ||
			strings.ContainsAny(rule, ".*> \t\r\n\x00") {
			t.Fatalf("%v is published on %q", values, subject)
		}
		if y := got.At().Year(); y < 1970 || y > 9999 {
			t.Fatalf("the year %d", y)
		}
	})
}

// The cut of a large dead letter does not split a character.
func TestACutDeadLetterIsValidUTF8(t *testing.T) {
	for _, field := range []string{"k", "ke", "key"} {
		m := entry.Message{Values: map[string]any{field: strings.Repeat("€", 2000)}}
		body := letterOf(m, invalid, "").body
		if !utf8.ValidString(body) || !strings.HasSuffix(body, "€…") || len(body) < 4094 {
			t.Errorf("%d bytes, which end in %q", len(body), body[len(body)-9:])
		}
	}
}
