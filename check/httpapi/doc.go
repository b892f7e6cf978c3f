// Package httpapi is the HTTP interface: checks (http.go, each.go), ingestion
// (ingest.go), keys, the list of who is throttled, and health. router.go hands
// requests on to routes, if tokens let them; openapi.json describes them, and
// problem.go says how an error is answered. What is decided is decided by
// package check.
package httpapi
