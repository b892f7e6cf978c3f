package api

// Periodic says in which periods a window counts. WindowKind embeds it.
type Periodic struct {
	// Calendar is day, week, month or year if the window is a period of the calendar; WindowMs is how long the
	// present period lasts.
	Calendar string `json:"calendar,omitempty"`
}

// Period is day, week, month or year if the window counts in such periods, else empty.
func (p Periodic) Period() string { return p.Calendar }
