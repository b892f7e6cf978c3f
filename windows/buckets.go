package windows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/document"
)

// Buckets of a window of "sliding-buckets".
const (
	DefaultBuckets = 60
	MaxBuckets     = 1000
)

// bucketsOption has no words of its own: the sentence about the rule's algorithm has the number of buckets.
var bucketsOption = option{
	fields: []optionField{{"buckets", "number", fmt.Sprintf("`%d`", DefaultBuckets), fmt.Sprintf(
		"parts that a window is divided into, 1 to %d; only with `%s`", MaxBuckets, SlidingBuckets),
		func(d *document.Document, r *Rule) document.Setter {
			return given(d, &r.Buckets, document.Whole(1, MaxBuckets),
				fmt.Sprintf("buckets 0: want a whole number from 1 to %d", MaxBuckets))
		}}},
	defaults: func(r *Rule) {
		if slices.Contains(r.Algorithms(), SlidingBuckets) {
			r.Buckets = cmp.Or(r.Buckets, DefaultBuckets)
		}
	},
	validate: func(r *Rule) *fault {
		switch has := slices.Contains(r.Algorithms(), SlidingBuckets); {
		case !has && r.Buckets != 0:
			return faultf("buckets", "buckets %d: only %s has buckets, not %s", r.Buckets, SlidingBuckets,
				strings.Join(r.Algorithms(), " and "))
		case has && (r.Buckets < 1 || r.Buckets > MaxBuckets):
			return faultf("buckets", "buckets %d: want a whole number from 1 to %d", r.Buckets, MaxBuckets)
		}
		return nil
	},
}
