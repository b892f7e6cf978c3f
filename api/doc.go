// Package api holds the types that are sent over the wire: events, check requests and their answers, throttle
// decisions and alerts with the subjects they are published to, and the errors that a caller can branch on with
// errors.Is, whatever the transport. Costs, counts and limits are units; fields in Ms are milliseconds, either a span
// or since 1970 by Redis's clock. It imports the standard library only.
package api
