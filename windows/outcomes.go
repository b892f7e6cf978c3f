package windows

import "slices"

// OnDeny says whether a denied cost counts.
type OnDeny string

// Values of OnDeny.
const (
	OnDenySkip   OnDeny = "skip"   // a denied cost does not count
	OnDenyCharge OnDeny = "charge" // it counts, because it happened anyway
)

// OnExpire says whether the units of an expired reservation count.
type OnExpire string

// Values of OnExpire.
const (
	OnExpireCharge OnExpire = "charge" // they count, because the work was probably done
	OnExpireFree   OnExpire = "free"
)

// OnError is the answer to a check while Redis does not answer.
type OnError string

// Values of OnError.
const (
	OnErrorAllow OnError = "allow"
	OnErrorDeny  OnError = "deny"
	OnErrorLocal OnError = "local" // by the count of this process
)

// WithoutRedis is the answer to a check of the rule while Redis does not answer: its OnError, except that a process
// alone counts no values, so a rule that counts nothing else allows.
func (r *Rule) WithoutRedis() OnError {
	if r.OnError == OnErrorLocal && !slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Distinct == "" }) {
		return OnErrorAllow
	}
	return r.OnError
}

var onDenyOption = choice("on_deny", "`charge`: a denied request counts too, because it happened anyway",
	func(r *Rule) *OnDeny { return &r.OnDeny }, OnDenySkip, OnDenyCharge).with(
	func(r *Rule) string {
		if r.OnDeny == OnDenyCharge {
			return "what is denied counts too"
		}
		return "what is denied does not count"
	}, func(r *Rule) bool { return !r.Shadow && r.Charges() })

var onExpireOption = choice("on_expire", "what happens to the units of a reservation that expires",
	func(r *Rule) *OnExpire { return &r.OnExpire }, OnExpireCharge, OnExpireFree).with(
	func(r *Rule) string {
		if r.OnExpire == OnExpireFree {
			return "an unsettled reservation costs nothing"
		}
		return "an unsettled reservation is charged"
	}, func(r *Rule) bool { return !r.Shadow && (r.InFlight() > 0 || r.OnExpire == OnExpireFree) })

var onErrorOption = choice("on_error", "answer of a check while Redis does not answer: `allow` (fail open), `deny` "+
	"(fail closed, 503), or `local` (each process counts on its own, up to limit / `--instances`)",
	func(r *Rule) *OnError { return &r.OnError }, OnErrorAllow, OnErrorDeny, OnErrorLocal).with(
	func(r *Rule) string {
		switch r.OnError {
		case OnErrorDeny:
			return "denied while Redis is away"
		case OnErrorLocal:
			switch {
			case r.WithoutRedis() == OnErrorAllow:
				return "allowed while Redis is away, as a process alone counts no values"
			case r.distinct():
				return "counted by each process, except values, while Redis is away"
			}
			return "counted by each process while Redis is away"
		}
		return "allowed while Redis is away"
	}, func(r *Rule) bool { return !r.Shadow && r.InFlight() == 0 }) // it is for checks: see docs/reservations.md
