package lua

// Penalty is an algorithm that counts no window: it keeps the time until which a key is denied.
const Penalty = "penalty"

// penalty has the hook in_force: the step in effect, from 1, and when it ends, in ms since 1970; 0 and 0 if none is.
var penalty = Algorithm{Name: Penalty, Form: Penalty, inForce: true}

// PenaltyOf is the value of Meter.More for a Penalty.
type PenaltyOf struct {
	Steps    []int64 `json:"steps"`  // in ms
	ForgetMs int64   `json:"forget"` // for how long a step is remembered after its end
}
