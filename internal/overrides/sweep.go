package overrides

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/glob"
)

// suffix is the end of an override's field in levels and due. levels has such a field with the record of
// a key's block, and due has one for each override that ends, by its end.
const suffix = "\n" + api.OverrideRule

// Field returns the field with which Sweep sweeps the override of a target from OnChange.
func Field(target string) string { return target + suffix }

// TargetOf returns the target of such a field. It returns false for a field of another kind.
func TargetOf(field string) (target string, ok bool) { return strings.CutSuffix(field, suffix) }

// Matcher returns a function that reports whether a key fits the pattern or the network of a target; nil for the
// target of a key.
func Matcher(target string) func(key string) bool {
	if !strings.HasPrefix(target, "\n") {
		return nil
	}
	if n, ok := networkOf(target); ok {
		return n.Contains
	}
	g := glob.Split(target[1:])
	return g.Fits
}

// Sweep sweeps the overrides among the fields. It returns the fields that remain to be swept: the other fields, and
// the keys whose override may just have ended. all, which may be nil, has the patterns and networks that fit a key.
// If above is not 0, decisions that are in force are published again, with versions above that number.
func (s Store) Sweep(ctx context.Context, p int, all *All, fields []string, above int64) (rest []string,
	written int64, err error) {
	args := []any{auditEntries, above}
	for _, field := range fields {
		target, ours := TargetOf(field)
		if !ours {
			rest = append(rest, field)
			continue
		}
		several := ""
		if !strings.HasPrefix(target, "\n") {
			if above == 0 && !slices.Contains(fields, target) {
				rest = append(rest, target)
			}
			several = all.patternOf(target)
		}
		args = append(args, target, several)
	}
	if len(args) == 2 {
		return rest, 0, nil
	}
	r := s.call(ctx, "expire-overrides", p, args...)
	return rest, r.Integer(), r.End()
}

// patternOf returns the override that a pattern or a network sets for a key, as JSON; "" if there is none.
func (o *All) patternOf(key string) string {
	if o == nil {
		return ""
	}
	one := o.set.fitting(key)
	if one == nil {
		return ""
	}
	text, err := json.Marshal(one.API())
	if err != nil { // it was read from JSON
		return ""
	}
	return string(text)
}
