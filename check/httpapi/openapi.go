package httpapi

import (
	_ "embed"
	"net/http"
)

// OpenAPI describes the HTTP interface; a test compares every answer with it.
//
//go:embed openapi.json
var OpenAPI []byte

func getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(OpenAPI) // the caller is gone if this fails
}
