package lua

// Penalty is an algorithm that counts no window: it says until when a key is denied.
const Penalty = "penalty"

// It tells the step that is in force, from 1, and when that ends, in ms since 1970; 0 and 0 where none is.
var penalty = Algorithm{Name: Penalty, Form: Penalty, tells: true}

// PenaltyOf is what Meter.More says of one.
type PenaltyOf struct {
	Steps    []int64 `json:"steps"`  // in ms
	ForgetMs int64   `json:"forget"` // for how long after the end of a step it is remembered
}
