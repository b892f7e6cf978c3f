// Package page is the page that an operator opens in a browser: which keys are throttled and why, what happens, which
// keys are busy, whether anything is behind, and a view of one key. It has the files of the page (assets, which need
// no build step) and the stream of what is live (feed.go; sample.go says what is in it). The files are public and
// hold no data. The page requests all data with the user's token, as any client does.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"time"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and call its own server, and nothing else: no inline script or
// style, no frame around it, and no markup made of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

var contentTypes = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// Routes are the page at /, its files, and the stream of what is live.
func Routes(f *Feed) []httpapi.Route {
	routes := []httpapi.Route{{Method: "GET", Path: "/page/live", Scope: access.ScopeRead, Serve: f}}
	files, err := assets.ReadDir("assets")
	if err != nil {
		panic(err) // they are in this program
	}
	for _, file := range files {
		content, err := assets.ReadFile("assets/" + file.Name())
		if err != nil {
			panic(err)
		}
		at := "/page/" + file.Name()
		if file.Name() == "index.html" {
			at = "/"
		}
		routes = append(routes, httpapi.Route{Method: "GET", Path: at, Open: true,
			Serve: serveFile(contentTypes[path.Ext(file.Name())], content)})
	}
	return routes
}

func serveFile(contentType string, content []byte) http.Handler {
	sum := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Content-Type": contentType, "ETag": tag,
			"Cache-Control":           "no-cache", // the browser asks each time whether it changed
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"} {
			w.Header().Set(name, value)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}
