package api

// InForce is what is in force for a key besides its windows. Answers and decisions embed it.
type InForce struct {
	// Penalty is nil where none is in force. While one is, the windows have nothing left.
	Penalty *Penalty `json:"penalty,omitempty"`
}

// DeniesUntilMs is when what is in force ends, in ms since 1970 by Redis's clock: until then nothing is admitted. 0
// where nothing is in force.
func (f InForce) DeniesUntilMs() int64 { return f.Penalty.until() }

// DenialDetail says why a key of a rule is denied; "" where nothing is in force.
func (f InForce) DenialDetail(key, rule string) string { return f.Penalty.detail(key, rule) }

// InForceText words it for people, with when it ends if there is a format for times; "" where nothing is in force.
func (f InForce) InForceText(timeText func(ms int64) string) string { return f.Penalty.text(timeText) }

// WindowInForce gives the state of a window while this is in force for that many milliseconds more: nothing is left,
// and nothing is free before it ends.
func (f InForce) WindowInForce(w WindowState, leftMs int64) WindowState {
	if f.DeniesUntilMs() > 0 {
		w.Remaining, w.NextFreeMs = 0, max(w.NextFreeMs, leftMs)
	}
	return w
}

// ReadInForce reads it from the fields of an entry of the outbox.
func ReadInForce(field func(name string) string) (f InForce, err error) {
	f.Penalty, err = readPenalty(field("penalty"))
	return f, err
}

func (f InForce) validateInForce() error { return f.Penalty.validate() }
