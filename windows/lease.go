package windows

import (
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/english"
)

// Bounds of a rule's lease.
const (
	MinLease = 10 * time.Millisecond
	MaxLease = 10 * time.Second
)

var wantLease = fmt.Sprintf("want %s to %s in whole milliseconds; a rule without lease takes none", MinLease, MaxLease)

var leaseOption = option{
	fields: []optionField{{"lease", "duration", "none", fmt.Sprintf("serve [hot keys](hot-keys.md) from memory for "+
		"this time, %s to %s, no longer than the shortest window; not beside `in_flight`",
		inDays(MinLease), inDays(MaxLease)),
		func(d *document.Document, r *Rule) document.Setter {
			return given(d, &r.Lease, duration, "lease 0s: "+wantLease)
		}}},
	validate: (*Rule).validateLease,
	state: func(r *Rule) string {
		if r.Lease == 0 {
			return "each check asks Redis"
		}
		return "keys that are asked for often are answered from memory, by leases of " + english.Span(r.Lease)
	},
	says: func(r *Rule) bool { return !r.Shadow && r.Lease > 0 },
}

// validateLease returns what is wrong with the rule's lease, nil if nothing is.
func (r *Rule) validateLease() *fault {
	i := slices.IndexFunc(r.Windows, func(w Window) bool { return w.InFlight })
	switch {
	case r.Lease == 0:
		return nil
	case i >= 0:
		return &fault{"lease", fmt.Sprintf("windows[%d].in_flight", i), fmt.Sprintf(
			"lease %s beside in_flight: a rule with an in_flight window takes reservations only; want one of the two",
			inDays(r.Lease))}
	case r.Lease < MinLease || r.Lease > MaxLease || r.Lease%time.Millisecond != 0:
		return faultf("lease", "lease %s: %s", inDays(r.Lease), wantLease)
	}
	for i, w := range r.Windows {
		if w.Distinct != "" {
			return &fault{"lease", fmt.Sprintf("windows[%d].distinct", i),
				"lease beside distinct: each value must be looked up in Redis; want only one of the two"}
		}
		if r.Lease > w.Per {
			return &fault{"lease", fmt.Sprintf("windows[%d].per", i), fmt.Sprintf(
				"lease %s: want no more than the shortest window, %s", inDays(r.Lease), inDays(r.shortest()))}
		}
	}
	return nil
}

// shortest returns the shortest window of the rule that counts charged units.
func (r *Rule) shortest() time.Duration {
	d := r.Longest()
	for _, w := range r.Windows {
		if !w.InFlight {
			d = min(d, w.Per)
		}
	}
	return d
}

// LeaseTime returns how long a process may answer for a key of this plan from memory; 0: not at all.
// It is shorter than the rule's if an operator sets shorter windows. It is 0 if a shadow rule counts
// slots in flight, because a lease would count there, or values, because Redis must see each value.
func (p *Plan) LeaseTime() time.Duration {
	if p == nil {
		return 0
	}
	return p.lease
}

// ShortestWindow returns the shortest window of the rule that decides, among those that count charged units.
func (p *Plan) ShortestWindow() time.Duration { return p.Live.shortest() }

func (p *Plan) leaseTime() time.Duration {
	if p.Live == nil || p.Live.Lease == 0 {
		return 0
	}
	for _, r := range p.rules {
		if r.InFlight() > 0 || r.distinct() {
			return 0
		}
	}
	return min(p.Live.Lease, p.Live.shortest())
}
