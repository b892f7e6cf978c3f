// Package check is the decision core behind every transport: requests and rules in, api.CheckAnswer out. It finds the
// rules of keys, adds up the costs of a key, lets requests that come together share one script call, asks Redis
// behind a circuit breaker, and lets the rules' on_error decide if Redis does not answer in time.
//
// A transport decodes, calls a [Service] and encodes: check/httpapi is HTTP, check/envoy Envoy's rate limit service,
// client/direct a Go API. Errors wrap the sentinels of package api; [ErrorText] returns the text that a caller may
// read. check/access decides who may ask for what.
package check
