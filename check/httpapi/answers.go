package httpapi

import "github.com/streamcounter/streamcounter/api"

// The bodies of answers that are not types of package api. A test compares all of
// them with openapi.json.
type (
	denial struct {
		api.Problem
		api.CheckAnswer
	}
	denials struct {
		api.Problem
		api.ChecksAnswer
	}
	eachAnswer struct {
		Checks []any `json:"checks"` // api.CheckAnswer, or eachError in its place
	}
	eachError struct {
		Key   string      `json:"key"`
		Error api.Problem `json:"error"`
	}
	eventsAnswer struct {
		Accepted int        `json:"accepted"`
		Rejected []rejected `json:"rejected"`
		More     int        `json:"rejected_more,omitempty"` // rejected ones that are not listed
		Refused  int        `json:"refused,omitempty"`       // certainly not stored
		Unknown  int        `json:"unknown,omitempty"`       // stored or not
	}
	// rejected is one line (or array element, counted from 1) that was not taken.
	rejected struct {
		Line  int    `json:"line"`
		Error string `json:"error"`
	}
	eventsProblem struct {
		api.Problem
		Events *eventsAnswer `json:"events,omitempty"`
	}
	resetAnswer struct {
		Key   string `json:"key"`
		Reset bool   `json:"reset"`
	}
	clearedAnswer struct {
		Key     string `json:"key,omitempty"`
		Pattern string `json:"pattern,omitempty"`
		Network string `json:"network,omitempty"`
		Cleared bool   `json:"cleared"` // false: there was none
	}
	throttledAnswer struct {
		Throttled []api.Throttled `json:"throttled"`
		Truncated bool            `json:"truncated"`      // there are more
		Next      string          `json:"next,omitempty"` // `after` of the next page, if there are more
	}
	statusAnswer struct {
		Status string `json:"status"`
	}
)
