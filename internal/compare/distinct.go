package compare

import "github.com/streamcounter/streamcounter/windows"

// distinct is a window of different values, counted directly from its definition: a plain map from each value to the
// time when it was last seen.
type distinct struct {
	window windows.Window
	plan   *windows.Plan               // of this window alone, which says which value is counted
	seen   map[string]map[string]int64 // key → value → ms
}

func newDistinct(w windows.Window) *distinct {
	plan := windows.PlanOf(&windows.Rule{Name: "distinct", Windows: []windows.Window{w}})
	return &distinct{w, plan, map[string]map[string]int64{}}
}

// value returns the value of a request that is counted; "": there is none.
func (d *distinct) value(r Request) string {
	list, err := d.plan.Values(func(name string) string { return r.Values[name] })
	if err != nil {
		return ""
	}
	return list[0]
}

// look returns how many values are in the window of a key, and when the first of them leaves. It removes those that
// have left.
func (d *distinct) look(key string, ms int64) (used, next int64) {
	for value, seen := range d.seen[key] {
		leaves := seen + d.window.Per.Milliseconds()
		if leaves <= ms {
			delete(d.seen[key], value)
			continue
		}
		if used++; used == 1 || leaves < next {
			next = leaves
		}
	}
	return used, next
}

// admitsValues reports whether the windows of values have room for a request, or have its value already, and whether
// the request has all values that they count.
func (o *RuleRollout) admitsValues(r Request) (admitted, counted bool) {
	admitted = true
	for _, d := range o.distinct {
		value := d.value(r)
		if value == "" {
			o.without[d.window.Distinct]++
			return false, false
		}
		used, _ := d.look(r.Key, r.Ms)
		_, known := d.seen[r.Key][value]
		admitted = admitted && (known || used < d.window.Limit)
	}
	return admitted, true
}

// addValues adds the values of a request that was admitted. It returns when a full window has room again; 0: no
// window is full.
func (o *RuleRollout) addValues(r Request, admitted bool) (until int64) {
	for _, d := range o.distinct {
		if admitted {
			if d.seen[r.Key] == nil {
				d.seen[r.Key] = map[string]int64{}
			}
			d.seen[r.Key][d.value(r)] = r.Ms
		}
		if used, next := d.look(r.Key, r.Ms); used >= d.window.Limit {
			until = max(until, next)
		}
	}
	return until
}
