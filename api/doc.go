// Package api holds what crosses a wire: request events, check requests and
// answers, throttle decisions and alerts, the subjects they stand under, and
// the errors a caller can branch on. It imports the standard library only, so
// that a client carries nothing of the server. Read event.go next, then
// decision.go.
package api
