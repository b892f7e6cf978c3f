package api

// InForce is what is in force for a key besides its windows. Answers and decisions embed it.
type InForce struct {
	// Penalty is nil if none is in force. While one is in force, the windows have nothing left.
	Penalty *Penalty `json:"penalty,omitempty"`
}

// DeniesUntilMs is the time until which nothing is admitted, in ms since 1970 by Redis's clock; 0 if nothing is in
// force.
func (f InForce) DeniesUntilMs() int64 { return f.Penalty.until() }

// DenialDetail returns why a key of a rule is denied; "" if nothing is in force.
func (f InForce) DenialDetail(key, rule string) string { return f.Penalty.detail(key, rule) }

// InForceText returns a text for people about what is in force. timeText, if not nil, formats the time when that
// ends. The text is empty if nothing is in force.
func (f InForce) InForceText(timeText func(ms int64) string) string { return f.Penalty.text(timeText) }

// WindowInForce returns the state of a window while f is in force for leftMs more: nothing is left, and nothing comes
// back before f ends.
func (f InForce) WindowInForce(w WindowState, leftMs int64) WindowState {
	if f.DeniesUntilMs() > 0 {
		w.Remaining, w.NextFreeMs = 0, max(w.NextFreeMs, leftMs)
	}
	return w
}

// ReadInForce reads an InForce from the fields of an entry of the outbox.
func ReadInForce(field func(name string) string) (f InForce, err error) {
	f.Penalty, err = readPenalty(field("penalty"))
	return f, err
}

func (f InForce) validateInForce() error { return f.Penalty.validate() }
