// Package check is the one decision core, without a transport: rules and requests
// in, api.CheckAnswer out. It matches keys with rules, adds up the costs of a key,
// lets calls share a run of the script (gather.go), asks Redis behind a breaker,
// and lets each rule's on_error decide where Redis cannot answer (decide.go).
//
// Transports are packages of their own that decode, call and encode: httpapi
// (HTTP) and envoy (Envoy's rate limit service). access says who may ask for what.
// Read service.go next.
package check
