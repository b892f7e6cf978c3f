package lua

import (
	"encoding/json"
	"slices"
	"sync/atomic"
)

// Plan describes the rules of a key to the library. plan.lua describes how the library reads it.
type Plan struct {
	Meters []Meter `json:"meters"`
	Rules  []Rule  `json:"rules"`

	text atomic.Pointer[string] // see Text
}

// Meter is one key of Redis, in which an algorithm counts some windows of a plan.
type Meter struct {
	Algorithm string `json:"algorithm"`
	// Setting has a meaning per algorithm. Logs: after how many ms they are trimmed and their expiry is renewed; 0: at
	// each write. Buckets: the number of buckets. Distinct: how many values are kept. Others do not use it.
	Setting int64 `json:"setting"`
	// SpanMs is the longest window.
	SpanMs int64 `json:"span"`
	// Windows are the windows of the plan that it counts, numbered from 1 over all rules.
	Windows []int `json:"windows,omitempty"`
	// More has the settings that only this algorithm needs: a struct from its own file, or nil.
	More any `json:"more,omitempty"`
}

// Rule is a rule of a plan. The rule that decides is the first, then come the shadow rules.
type Rule struct {
	Name      string   `json:"name"`
	Algorithm string   `json:"algorithm"` // identifies its algorithms; if it changes, levels are evaluated again
	HoldMs    int64    `json:"hold"`
	Shadow    bool     `json:"shadow,omitempty"`
	Windows   []Window `json:"windows"`
}

// Window is one window of a Rule, in milliseconds and units.
type Window struct {
	Ms    int64 `json:"ms"`
	Limit int64 `json:"limit"`
	// Steps are its levels, ascending: for each, the percentage and the number of units at which it begins.
	Steps []int64 `json:"steps,omitempty"`
	// InFlight windows count only reserved units. Ms is how long a unit can be reserved at most.
	InFlight bool `json:"in_flight,omitempty"`
	// ID, FromMs and NextMs are set for a window that counts in periods, otherwise 0. ID is the same for
	// windows with the same periods. FromMs is when its period began, which lasts for Ms. NextMs is how long the next
	// period lasts.
	ID     int64 `json:"id,omitempty"`
	FromMs int64 `json:"from,omitempty"`
	NextMs int64 `json:"next,omitempty"`
}

// Begins returns when the periods of its windows begin, in ms.
func (p *Plan) Begins() (begins []int64) {
	for _, r := range p.Rules {
		for _, w := range r.Windows {
			if w.FromMs > 0 {
				begins = append(begins, w.FromMs)
			}
		}
	}
	return begins
}

// Text returns the plan as JSON, which the library reads. It is made once. The plan must not be changed after that.
func (p *Plan) Text() string {
	if known := p.text.Load(); known != nil {
		return *known
	}
	made, err := json.Marshal(p)
	if err != nil {
		panic(err) // impossible: a plan has only numbers and texts
	}
	text := string(made)
	p.text.Store(&text)
	return text
}

// AppendTexts adds the texts of plans to the arguments of a call.
func AppendTexts(args []any, plans []*Plan) []any {
	for _, p := range plans {
		args = append(args, p.Text())
	}
	return args
}

// algorithmsOf returns the algorithms whose Lua files the plans need, sorted, each once.
func algorithmsOf(plans []*Plan) []string {
	list := make([]string, 0, 1)
	for _, p := range plans {
		for _, m := range p.Meters {
			if i, found := slices.BinarySearch(list, m.Algorithm); !found {
				list = slices.Insert(list, i, m.Algorithm)
			}
		}
	}
	return list
}

// windows returns how many windows there are, and how many of them do not decide.
func (p *Plan) windows() (all, shadows int) {
	for i := range p.Rules {
		n := len(p.Rules[i].Windows)
		all += n
		if p.Rules[i].Shadow {
			shadows += n
		}
	}
	return all, shadows
}

// inForce is the number of integers that hook in_force (plan.lua) adds to a state of a key.
func (p *Plan) inForce() (n int) {
	for i := range p.Meters {
		if named(p.Meters[i].Algorithm).inForce {
			n += 2
		}
	}
	return n
}
