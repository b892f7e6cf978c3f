package transport

import (
	"fmt"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Bearer returns the Authorization of a request with the current token, or "" if token is nil. A token that cannot be
// in a header is a wrong token, and no failure of the server.
func Bearer(token func() string) (string, error) {
	if token == nil {
		return "", nil
	}
	current := token()
	if strings.ContainsFunc(current, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", fmt.Errorf("%w: the token has a line break or another character that no header can have",
			api.ErrUnauthenticated)
	}
	return "Bearer " + current, nil
}
