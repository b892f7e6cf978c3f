// Package faults tries to break the promise: every stored event counts once, no
// window admits more than its limit, and every transition is published once, in
// order. It runs the real program against a real Redis and a real NATS, and
// kills, freezes, cuts and misleads all of them in an order that a seed gives.
// Then it lets them come to rest and verifies, from what Redis and NATS hold,
// against what it recorded.
//
//	make faults SEED=7 MINUTES=10
//
// Read faults_test.go (the story, the system, and the report of a broken promise), then driver_test.go (the load, what
// is recorded, and events that are claimed late), inflict_test.go (the faults), holders_test.go (reservations, slots
// and what their holders know), values_test.go (different values), asker_test.go (checks, and those whose answers are
// lost), operator_test.go (what operators set, and rules that change), verify_test.go (the promises).
package faults
