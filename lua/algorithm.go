package lua

import "slices"

// Algorithm is a way to count. Its script is the file of its name.
type Algorithm struct {
	Name    string // as in a rule
	Form    string // of its counters in Redis: a part of their names
	Promise Promise
	inForce bool // its hook in_force (plan.lua) adds two integers to each state of a key
}

// Promise defines exactly how many units a window holds at a time. internal/counters/oracle_test.go
// has a recount for each promise. The tests compare every algorithm with it.
type Promise string

const (
	// EveryUnit counts each unit from its own millisecond, for as long as the window.
	EveryUnit Promise = "every unit"
	// WholeBuckets counts each unit until its bucket of the window has left as a whole.
	WholeBuckets Promise = "whole buckets"
	// Estimate is computed from the windows of the clock.
	Estimate Promise = "an estimate"
	// OfTheClock counts since the last multiple of the window's length.
	OfTheClock Promise = "of the clock"
)

// Algorithms are the algorithms that a rule can name, the default first. Each has an entry here, a Lua file, which sets
// algorithms[name] (see plan.lua), and a line in each of the two tables of docs/algorithms.md. Tests fail without one.
var Algorithms = []Algorithm{
	{Name: "sliding-log", Form: "log", Promise: EveryUnit},
	{Name: "sliding-log-zset", Form: "zset", Promise: EveryUnit},
	{Name: "sliding-counter", Form: "pair", Promise: Estimate},
	{Name: "sliding-buckets", Form: "buckets", Promise: WholeBuckets},
	{Name: "fixed-window", Form: "fixed", Promise: OfTheClock},
}

// unnamed are the algorithms that no rule names. Each also has a Go file.
var unnamed = []Algorithm{calendar, distinct, penalty}

var all = slices.Concat(Algorithms, unnamed)

// AlgorithmNames returns the names of Algorithms, in their order.
func AlgorithmNames() (names []string) {
	for _, a := range Algorithms {
		names = append(names, a.Name)
	}
	return names
}

// Exact returns the names of the algorithms that promise EveryUnit.
func Exact() []string {
	return slices.DeleteFunc(AlgorithmNames(), func(name string) bool { return !IsExact(name) })
}

// IsExact reports whether an algorithm of this name promises EveryUnit.
func IsExact(name string) bool { return PromiseOf(name) == EveryUnit }

// PromiseOf returns the promise of an algorithm; "" if there is none of that name.
func PromiseOf(name string) Promise { return named(name).Promise }

// Form returns an algorithm's form. It is empty for an unknown name, and for an algorithm with several forms.
func Form(algorithm string) string { return named(algorithm).Form }

// Forms returns the forms of all algorithms that have one.
func Forms() (list []string) {
	for _, a := range all {
		if a.Form != "" {
			list = append(list, a.Form)
		}
	}
	return list
}

func named(name string) Algorithm {
	for i := range all {
		if all[i].Name == name {
			return all[i]
		}
	}
	return Algorithm{}
}
