package lua

import "slices"

// Algorithm is a way to count. Its script is the file of its name.
type Algorithm struct {
	Name    string // as in a rule
	Form    string // of its counters in Redis: a word in their names
	Promise Promise
}

// Promise says what a window holds at a time, to the unit. The recount of each is in
// internal/streamtest/oracle.go, which the tests compare every algorithm with.
type Promise string

const (
	// EveryUnit at its own millisecond, for as long as the window.
	EveryUnit Promise = "every unit"
	// WholeBuckets counts each unit until its bucket of the window has left as a whole.
	WholeBuckets Promise = "whole buckets"
	// Estimate is made of the windows of the clock.
	Estimate Promise = "an estimate"
	// OfTheClock counts since the last multiple of the window's length.
	OfTheClock Promise = "of the clock"
)

// Algorithms are those that there are scripts for, the default first. Each has an
// entry here, a file, which sets algorithms[name] (plan.lua says to what), and its
// lines in the two tables of docs/algorithms.md. Tests find what is missing.
var Algorithms = []Algorithm{
	{"sliding-log", "log", EveryUnit},
	{"sliding-log-zset", "zset", EveryUnit},
	{"sliding-counter", "pair", Estimate},
	{"sliding-buckets", "buckets", WholeBuckets},
	{"fixed-window", "fixed", OfTheClock},
}

// Three more that no rule names. Calendar counts the windows of the calendar, and Distinct the different values of a
// field. Penalty counts none: it says until when a key is denied.
const (
	Calendar = "calendar"
	Distinct = "distinct"
	Penalty  = "penalty"
)

var (
	allNames   = namesOf(func(Algorithm) bool { return true })
	exactNames = namesOf(func(a Algorithm) bool { return a.Promise == EveryUnit })
)

func namesOf(wanted func(Algorithm) bool) (names []string) {
	for _, a := range Algorithms {
		if wanted(a) {
			names = append(names, a.Name)
		}
	}
	return names
}

// AlgorithmNames gives the names of Algorithms, in their order.
func AlgorithmNames() []string { return slices.Clone(allNames) }

// Exact gives the names of those that promise EveryUnit.
func Exact() []string { return slices.Clone(exactNames) }

// IsExact reports whether an algorithm of this name promises EveryUnit.
func IsExact(name string) bool { return slices.Contains(exactNames, name) }

// PromiseOf gives what an algorithm promises; "" where there is none of that name.
func PromiseOf(name string) Promise { return named(name).Promise }

// Form gives the form of an algorithm's counters in Redis; "" where there is none of that name.
func Form(algorithm string) string {
	switch algorithm {
	case Calendar, Distinct, Penalty:
		return algorithm
	}
	return named(algorithm).Form
}

func named(name string) Algorithm {
	for _, a := range Algorithms {
		if a.Name == name {
			return a
		}
	}
	return Algorithm{}
}
