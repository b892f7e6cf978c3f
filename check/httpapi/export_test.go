package httpapi

// ProblemTypes are those of errors.
func ProblemTypes() (list []string) {
	for _, p := range problems {
		list = append(list, problemOf(p.err).Type)
	}
	return list
}

var (
	ReadBody     = readBody
	DecodeEvents = decodeEvents
)
