package lua

import "slices"

// Algorithm is a way to count. Its script is the file of its name.
type Algorithm struct {
	Name string // as in a rule
	Form string // of its counters in Redis: a word in their names
	// Exact: it counts every unit at its own millisecond. What a key has spent passes
	// from one exact algorithm to another.
	Exact bool
}

// Algorithms are those that there are scripts for, the default first. Each has an
// entry here and a file, which sets algorithms[name] (prelude.lua says to what).
var Algorithms = []Algorithm{
	{"sliding-log", "log", true},
	{"sliding-log-packed", "packed", true},
	{"sliding-log-zset", "zset", true},
	{"sliding-counter", "pair", false},
	{"sliding-buckets", "buckets", false},
	{"fixed-window", "fixed", false},
}

// AlgorithmNames gives the names of Algorithms, in their order.
func AlgorithmNames() []string {
	names := make([]string, len(Algorithms))
	for i, a := range Algorithms {
		names[i] = a.Name
	}
	return names
}

// IsExact reports whether an algorithm of this name is exact.
func IsExact(name string) bool { return slices.Contains(exactNames, name) }

var exactNames = Exact()

// Exact gives the names of the exact ones.
func Exact() []string {
	var names []string
	for _, a := range Algorithms {
		if a.Exact {
			names = append(names, a.Name)
		}
	}
	return names
}

// Two more that no rule names: Calendar counts the windows of the calendar, and Mixed is made of parts,
// which count windows by an algorithm each.
const (
	Calendar = "calendar"
	Mixed    = "mixed"
	Penalty  = "penalty" // a part of a Mixed rule that counts no window
)

// Form gives the form of an algorithm's counters in Redis; "" where there is none of that name.
func Form(algorithm string) string {
	if algorithm == Calendar || algorithm == Penalty {
		return algorithm
	}
	for _, a := range Algorithms {
		if a.Name == algorithm {
			return a.Form
		}
	}
	return ""
}
