// Package httpmw limits a net/http service: each request has a key, and one
// whose key is over its limit is answered with 429. The guard, if there is one,
// is asked first and costs no round trip; the checker, if there is one, decides
// and charges. The response writer is handed on as it is. Read middleware.go next.
package httpmw
