// Package httpapi is the HTTP interface: checks (check.go), ingestion (ingest.go), keys, the list of
// throttled keys, and health. router.go passes requests to routes, if their tokens permit it. openapi.json describes
// the routes, and problem.go has the answer to each error. Package check makes the decisions.
package httpapi
