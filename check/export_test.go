package check

import (
	"net/http"

	"github.com/streamcounter/streamcounter/api"
)

// Extract is what an extractor makes of a request.
func Extract(e *Extractors, name string, r *http.Request) (api.CheckRequest, error) {
	x, err := e.find(name)
	if err != nil {
		return api.CheckRequest{}, err
	}
	return x.request(r)
}

// ParseTokens reads a tokens file and forgets it.
func ParseTokens(name string, data []byte) error {
	_, err := parseTokens(name, data)
	return err
}

// ProblemTypes are those of errors.
func ProblemTypes() (list []string) {
	for _, p := range problems {
		list = append(list, problemOf(p.err).Type)
	}
	return list
}

const MaxLocalKeys = maxLocalKeys

// LocalKeys is how many keys the service counts by itself.
func LocalKeys(s *Service) int { return s.local.Len() }
