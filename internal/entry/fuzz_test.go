package entry_test

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
)

// validKey implements the contract again, without code of the product: 1 to 512 bytes
// of UTF-8, without U+0000 to U+001F and U+007F to U+009F.
func validKey(key string) bool {
	if len(key) < 1 || len(key) > 512 || string([]rune(key)) != key {
		return false
	}
	for _, r := range key {
		invisible := strings.ContainsRune("\u061c\u200b\u200e\u200f\u202a\u202b\u202c"+
			"\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"+
			"\u00ad\u034f\u115f\u1160\u180e\u2061\u2062\u2063\u2064"+
			"\u206a\u206b\u206c\u206d\u206e\u206f\u3164\uffa0\ufff9\ufffa\ufffb", r) ||
			r >= 0xe0000 && r <= 0xe007f
		if r < 0x20 || r >= 0x7f && r < 0xa0 || invisible {
			return false
		}
	}
	return true
}

// validCount returns the integer in a text of digits, if it is from 1 to 10^9 and has no leading zero.
func validCount(text string) (int64, bool) {
	if strings.Trim(text, "0123456789") != "" || strings.HasPrefix(text, "0") {
		return 0, false
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() < 1 || n.Cmp(big.NewInt(1_000_000_000)) > 0 {
		return 0, false
	}
	return n.Int64(), true
}

// FuzzDecode: an event is accepted if and only if it obeys the contract, and it is then
// the event that was written.
func FuzzDecode(f *testing.F) {
	for _, s := range []struct{ field, key, count string }{
		{"key", "user:42", "1"}, {"key", "a", "1000000000"}, {"key", "a", "1000000001"}, {"key", "", "1"},
		{"Key", "a", "1"}, {"key", "a", "0"}, {"key", "a", "-1"},
		{"key", "a", "1.5"}, {"key", "a", "1e3"}, {"key", "a", "0x10"}, {"key", "a", "1_000"}, {"key", "a", " 1"},
		{"key", "a", "+7"}, {"key", "a", "007"}, {"key", "a", "--1"},
		{"key", "a", "99999999999999999999"}, {"key", "a", "NaN"}, {"key", "\xff", "1"}, {"key", "\xed\xa0\x80", "1"},
		{"key", "a\x00b", "1"}, {"key", "a\x7f", "1"}, {"key", "\u0085", "1"},
		{"key", "\u2028\u202e", "1"}, {"key", strings.Repeat("é", 256), "1"},
		{"key", strings.Repeat("é", 256) + "x", "1"}, {"count", "a", "5"},
	} {
		f.Add(s.field, s.key, true, s.count, "id", "x")
		f.Add(s.field, s.key, false, s.count, "count ", "9")
	}
	for _, id := range []string{"order 42 é", "", "\xff", "a\nb", strings.Repeat("i", 128), strings.Repeat("i", 129)} {
		f.Add("key", "a", false, "", "id", id)
	}
	f.Fuzz(func(t *testing.T, field, key string, counted bool, count, other, value string) {
		values := map[string]any{other: value, field: key}
		if counted {
			values["count"] = count
		}
		wantKey, hasKey := values["key"].(string)
		want, ok := int64(1), hasKey && validKey(wantKey)
		if text, has := values["count"].(string); has && ok {
			want, ok = validCount(text)
		}
		id, _ := values["id"].(string)
		if id != "" {
			ok = ok && len(id) <= 128 && validKey(id)
		}
		got, err := entry.Message{ID: "1-1", Values: values}.Decode()
		if (err == nil) != ok || ok && (got.Key != wantKey || got.Count != want || got.ID != id) {
			t.Fatalf("%q: %+v, error %v; the contract says %v", values, got, err, ok)
		}
		known := errors.Is(err, api.ErrBadKey) || errors.Is(err, api.ErrBadCount) || errors.Is(err, api.ErrBadID)
		if err != nil && (len(err.Error()) > 400 || !known) {
			t.Fatalf("an error of %d bytes: %v", len(err.Error()), err)
		}
	})
}

func TestMessageMs(t *testing.T) {
	for id, want := range map[string]int64{"0-1": 0, "1700000000123-0": 1_700_000_000_123,
		"5-18446744073709551615": 5, "7": 7} {
		if got := (entry.Message{ID: id}).Ms(); got != want {
			t.Errorf("%s: %d ms, want %d", id, got, want)
		}
	}
}
