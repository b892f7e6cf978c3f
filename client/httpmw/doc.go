// Package httpmw limits a net/http service: each request has a key, and one whose key is
// over its limit is answered with 429, Retry-After and the RateLimit headers. The guard,
// if there is one, is asked first and costs no round trip; the checker, if there is one,
// decides and charges. Requests without a key pass. Where nobody decides, a client.Client
// answers by its policy; a transport without one leads to 503.
package httpmw
