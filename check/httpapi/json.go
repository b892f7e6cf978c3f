package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
)

// requestFields are the fields that this interface reads, except those of events (eventFields).
var requestFields = []string{"key", "cost", "count", "id", "checks", "each", "mode", "block", "exempt", "rule",
	"windows", "limit", "per", "zone", "starts", "only", "until", "until_ms", "for", "reason", "values", "ttl_ms",
	"had", "used", "keep", "want", "least"}

// maxDepth is the deepest nesting that is accepted. A check of several keys has 3.
const maxDepth = 32

// unambiguous refuses JSON that encoding/json accepts and other parsers read in another way. Two parsers would then
// count two different keys. ours are the names of the fields that are read.
func unambiguous(body []byte, ours []string) error {
	if !utf8.Valid(body) { // the decoder would put U+FFFD in place of the bad bytes
		return fmt.Errorf("%w: not valid UTF-8: %q", api.ErrBadRequest, body[:min(len(body), 40)])
	}
	if at := loneSurrogate(body); at >= 0 {
		return fmt.Errorf("%w: at byte %d: %s is half a character (a surrogate without its other one)",
			api.ErrBadRequest, at, body[at:at+6])
	}
	return exactFields(body, ours)
}

// exactFields refuses a field that is given twice in an object, one of ours in other letter case, and one of ours
// that is null. The decoder refuses what is not JSON.
func exactFields(body []byte, ours []string) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	for {
		err := exactValue(dec, ours, "", 0)
		if errors.Is(err, api.ErrBadRequest) {
			return err
		}
		if err != nil {
			return nil //nolint:nilerr // the end, or what the decoder refuses
		}
	}
}

// exactValue reads the value of a field; the name is checks[0] in the list of checks, and empty at the top.
func exactValue(dec *json.Decoder, ours []string, name string, depth int) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: at byte %d: "+format, append([]any{api.ErrBadRequest, dec.InputOffset()}, args...)...)
	}
	list, _, _ := strings.Cut(name, "[")
	opened := token == json.Delim('{') || token == json.Delim('[')
	switch {
	case token == nil && (depth == 0 || slices.Contains(ours, list)):
		return bad("%s is null", cmp.Or(name, "the value"))
	case !opened:
		return nil
	case depth == maxDepth:
		return bad("it is nested deeper than %d", maxDepth)
	}
	if name == "values" { // its fields have the names that rules give them
		ours = nil
	}
	seen := map[string]bool{}
	for i := 0; dec.More(); i++ {
		field := ""
		if token == json.Delim('[') {
			field = fmt.Sprintf("%s[%d]", name, i)
		} else {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			field, _ = key.(string)
			if seen[field] {
				return bad("%s is given twice", api.Shorten(field))
			}
			same := func(name string) bool { return strings.EqualFold(name, field) } // as the decoder compares
			if i := slices.IndexFunc(ours, same); i >= 0 && ours[i] != field {
				return bad("unknown field %s, expected %q", api.Shorten(field), ours[i])
			}
			seen[field] = true
		}
		if err := exactValue(dec, ours, field, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token() // its end
	return err
}

// withArticle returns encoding/json's name of a value with its article: a number, an array.
func withArticle(name string) string {
	if strings.HasPrefix(name, "array") || strings.HasPrefix(name, "object") {
		return "an " + name
	}
	return "a " + name
}

// expectedJSON returns the name of the JSON value for a Go type.
func expectedJSON(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "an integer in plain digits, at most 18 of them"
}

// loneSurrogate returns the index of the first \u escape that is half a character, or -1 if there is none.
// encoding/json replaces such an escape with U+FFFD, and two keys that differ only there would be counted as one.
// body may be any bytes.
func loneSurrogate(body []byte) int {
	const low, lowEnd = 0xDC00, 0xE000
	for i := bytes.IndexByte(body, '\\'); i >= 0 && i+1 < len(body); {
		step := 2 // past the escaped character
		switch unit := escape(body[i:]); {
		case unit >= low && unit < lowEnd:
			return i
		case unit >= 0xD800 && unit < low:
			if next := escape(body[i+6:]); next < low || next >= lowEnd {
				return i
			}
			step = 12
		}
		next := bytes.IndexByte(body[i+step:], '\\')
		if next < 0 {
			return -1
		}
		i += step + next
	}
	return -1
}

// escape returns the value of the \uXXXX that b begins with, or -1.
func escape(b []byte) int64 {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(unit)
}
